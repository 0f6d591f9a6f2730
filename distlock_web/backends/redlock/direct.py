"""A free lock in the least time: one message for all nodes, written to connections that are open already.

It is packed once, and neither a port nor a coroutine stands between it and the sockets. It knows one good end: a
majority and the lead have given the lock. Anything else is left to the port, which asks again and finds what this has
got: an acquisition may be sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...core.backend import Claim
from ...core.runtime import now
from ..redis.scripts import ACQUIRE, lock_keys
from ..redis.transport.pool import Connection
from .node import Node
from .quorum import wait_for_data

#: Microseconds that the clocks of the nodes may be apart: the message says until when it is meant.
MAX_APART_US = 50_000


def take(order: Sequence[Node], claim: Claim, fence: int, needed: int, index: str) -> list[int] | None:
    """The fences that a majority has given, its lead among them (the first in the order); None: ask the ports."""
    nodes = [node for node in order if node.ready]
    if len(nodes) < needed or any(node.down_since is None for node in order[len(nodes) :]):
        return None
    packed = _packed(nodes, claim, fence, index)
    if packed is None:
        return None
    waiting: dict[int, tuple[Node, Connection]] = {}
    try:
        for node in nodes:
            connection = node.send_now(packed)
            if connection is None:
                return None
            waiting[connection.fileno()] = node, connection
        return _majority(waiting, nodes[0], needed)
    finally:
        for node, connection in waiting.values():
            node.leave_unfinished(connection, claim.token)


async def take_in_loop(order: Sequence[Node], claim: Claim, fence: int, needed: int, index: str) -> list[int] | None:
    """The same for a task. Each node has one connection in a loop: what is asked next comes after this."""
    nodes = [node for node in order if node.down_since is None]
    packed = _packed(nodes, claim, fence, index) if len(nodes) >= needed else None
    if packed is None:
        return None
    fences: list[int] = []
    asked: dict[asyncio.Future[Any], Node] = {}
    end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answered(future: asyncio.Future[Any]) -> None:
        node = asked.pop(future)
        given = 0 if future.cancelled() or future.exception() is not None else node.grant_of(future.result())
        fences.append(given)
        enough = len(fences) >= needed and nodes[0] not in asked.values()
        if not end.done() and (not given or enough):
            end.set_result(bool(given))

    for node in nodes:
        future = node.ask_in_loop(packed)
        if future is None:
            return None
        asked[future] = node
    for future in list(asked):
        future.add_done_callback(answered)
    return list(fences) if await end else None


def _packed(nodes: Sequence[Node], claim: Claim, fence: int, index: str) -> bytes | None:
    """One message for all; None: their clocks are too far apart for that."""
    clocks = [node.server_time_us for node in nodes]
    if max(clocks) - min(clocks) > MAX_APART_US:
        return None
    until = max(clocks) + int(nodes[0].timeout * 1_000_000)
    args = (claim.token, round(claim.expire * 1000), 0, claim.holder, "", until, fence)
    return ACQUIRE.call(lock_keys(claim.name, index), args)


def _majority(waiting: dict[int, tuple[Node, Connection]], lead: Node, needed: int) -> list[int] | None:
    fences: list[int] = []
    until, led = now() + lead.timeout, False
    while (left := until - now()) > 0:
        for descriptor in wait_for_data(waiting, left):
            node, connection = waiting.pop(descriptor)
            fence = node.read_grant(connection)
            if not fence:
                return None
            fences.append(fence)
            led = led or node is lead
            if led and len(fences) >= needed:
                return fences
    return None
