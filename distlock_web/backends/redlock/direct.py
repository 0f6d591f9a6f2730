"""A free lock in the least time: one message for all nodes, written to connections that are open already.

It is packed once, and neither a port nor a coroutine stands between it and the sockets. It knows one good end each: a
majority and the lead have given the lock, or taken it back. Anything else is left to the port, which asks again and
finds what this has got: an acquisition may be sent twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ...core.backend import Claim
from ...core.runtime import now
from ..redis.scripts import ACQUIRE, RELEASE, lock_keys
from ..redis.transport.pool import Reply
from .lane import Lane, Lanes
from .node import Node
from .votes import Ledger
from .wire import Question

#: Microseconds that the clocks of the nodes may be apart: the message says until when it is meant.
MAX_APART_US = 50_000
#: Seconds between two looks at a lane that somebody else uses.
LOOK_AGAIN = 0.001


class Taken(NamedTuple):
    fences: list[int]  #: what a majority has given, its lead among them
    question: Question | None  #: the others may not have answered yet


class DirectThreads:
    """For threads, over lanes."""

    def __init__(self, lanes: Lanes, ledger: Ledger, needed: int, index: str) -> None:
        self._lanes = lanes
        self._ledger = ledger
        self._needed = needed
        self._index = index

    async def take(self, order: Sequence[Node], claim: Claim, fence: int) -> Taken | None:
        """Ask all that can be asked, the lead among them, which is the first in the order. None: ask the ports."""
        lane = self._lanes.take()
        if lane is None:
            return None
        question = Question(claim, lane)
        with lane:
            nodes = lane.ready(order)
            packed = _packed(nodes, claim, fence, self._index)
            if packed is None or len(nodes) < self._needed or nodes[0] is not order[0]:
                return None
            try:
                fences = self._majority(lane, nodes, packed, question)
            except BaseException:
                question.undo = True
                raise
        return None if fences is None else Taken(fences, question)

    def _majority(self, lane: Lane, nodes: list[Node], packed: bytes, question: Question) -> list[int] | None:
        fences: dict[Node, int] = {}
        answered = []
        for node, reply in lane.ask(nodes, packed, question):
            answered.append(node)
            if fence := node.grant_of(reply):
                fences[node] = fence
                if len(fences) >= self._needed and nodes[0] in fences:
                    return list(fences.values())
        # All have answered or failed: what the port asks comes after this.
        for node in nodes:
            if node not in answered:
                self._ledger.bar(node, question.claim)
        return None

    async def release(self, order: Sequence[Node], claim: Claim, acquired: Question | None) -> set[Node]:
        """The nodes that say that the lock was ours until now: the lead and a majority, or fewer."""
        lane: Lane | None = None
        if acquired is not None:
            lane = acquired.lane
            if not self._lanes.take_this(acquired.lane):
                self.settle(order, acquired)
                lane = self._lanes.take()
        given: set[Node] = set()
        if lane is None:
            return given
        with lane:
            nodes = lane.ready(order, lagging=True)
            if any(claim.token in node.unfinished for node in order):
                return given
            _cancel_where_down(order, nodes, claim)
            for node, reply in lane.ask(nodes, _release(claim, self._index), Question(claim, lane, undo=True)):
                if reply == 0:
                    given.add(node)
                    if len(given) >= self._needed and order[0] in given:
                        break
        return given

    def settle(self, order: Sequence[Node], question: Question) -> None:
        """Until each node has answered this or is down: what its token is asked for elsewhere comes after that."""
        lane: Lane = question.lane
        until = now() + max(node.timeout for node in order)
        while lane.owing(question) and now() < until:
            if self._lanes.take_this(lane):
                with lane:
                    for _ in lane.answers(question):
                        pass
            else:
                time.sleep(LOOK_AGAIN)


class DirectTasks:
    """For tasks. Each node has one connection in an event loop: what is asked next comes after this."""

    def __init__(self, ledger: Ledger, needed: int, index: str) -> None:
        self._ledger = ledger
        self._needed = needed
        self._index = index

    async def take(self, order: Sequence[Node], claim: Claim, fence: int) -> Taken | None:
        nodes = [node for node in order if node.down_since is None]
        packed = _packed(nodes, claim, fence, self._index)
        if packed is None or len(nodes) < self._needed:
            return None
        failed: list[Node] = []
        given = await self._ask(nodes, packed, Node.grant_of, failed.append)
        if self._is_enough(given, order):
            return Taken(list(given.values()), None)
        for node in failed:
            self._ledger.bar(node, claim)
        return None

    async def release(self, order: Sequence[Node], claim: Claim, acquired: Question | None) -> set[Node]:
        if acquired is not None or any(claim.token in node.unfinished for node in order):
            return set()
        nodes = [node for node in order if node.down_since is None]
        packed = _release(claim, self._index)
        given = set(await self._ask(nodes, packed, _gave_back, lambda node: node.cancel_later(claim)))
        _cancel_where_down(order, nodes, claim)
        return given

    async def _ask(
        self,
        nodes: Sequence[Node],
        packed: bytes,
        vote: Callable[[Node, Reply], int],
        failed: Callable[[Node], None],
    ) -> dict[Node, int]:
        """The votes of the lead and a majority, or all that come. None is sent if not all can be asked.

        ``failed`` is called with each node that does not answer, also after this has returned.
        """
        streams = [(node, stream) for node in nodes if (stream := node.open_stream()) is not None]
        votes: dict[Node, int] = {}
        if not streams or len(streams) < len(nodes):
            return votes
        left = len(streams)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(node: Node, future: asyncio.Future[Reply]) -> None:
            nonlocal left
            left -= 1
            error = future.exception()
            if error is None:
                if given := vote(node, future.result()):
                    votes[node] = given
            else:
                node.ended(error)
                failed(node)
            if not end.done() and (not left or self._is_enough(votes, nodes)):
                end.set_result(None)

        for node, stream in streams:
            stream.ask(packed).add_done_callback(partial(answered, node))
        await end
        return votes

    def _is_enough(self, votes: Mapping[Node, int], order: Sequence[Node]) -> bool:
        return len(votes) >= self._needed and order[0] in votes

    def settle(self, order: Sequence[Node], question: Question) -> None:
        """What a thread has asked: a node that has not answered may do that after what is asked for its token now."""
        lane: Lane = question.lane
        lane.catch_up()
        for node in lane.owing(question):
            node.cancel_later(question.claim)


def _packed(nodes: Sequence[Node], claim: Claim, fence: int, index: str) -> bytes | None:
    """One message for all; None: their clocks are not known yet, or too far apart for that."""
    ahead = [node.ahead_us for node in nodes if node.ahead_us is not None]
    if not ahead or len(ahead) < len(nodes) or max(ahead) - min(ahead) > MAX_APART_US:
        return None
    until = max(ahead) + int((now() + nodes[0].timeout) * 1_000_000)
    args = (claim.token, round(claim.expire * 1000), 0, claim.holder, "", until, fence)
    return ACQUIRE.call(lock_keys(claim.name, index), args)


def _release(claim: Claim, index: str) -> bytes:
    return RELEASE.call(lock_keys(claim.name, index), (claim.token, 0, 0))


def _cancel_where_down(order: Sequence[Node], up: Sequence[Node], claim: Claim) -> None:
    for node in order:
        if node not in up:
            node.cancel_later(claim)


def _gave_back(node: Node, reply: Reply) -> int:
    return int(reply == 0)
