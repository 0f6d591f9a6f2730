"""What a node answers when a slot is not its own, or is just being moved: of an error, where to ask instead."""

from __future__ import annotations

import re
from typing import NamedTuple

from ....core.errors import DistLockError
from ..transport.errors import ErrorReply


class NodeAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Moved(NamedTuple):
    """The slot is another node's."""

    slot: int
    to: NodeAddress


class Ask(NamedTuple):
    """The slot is on its way to another node, and these keys are there: this question only, behind an ASKING."""

    to: NodeAddress


class TryAgain:
    """The keys of the lock are at both ends of a move, or one of them does not exist: they may not be used together."""


_ELSEWHERE = re.compile(r"(MOVED|ASK) (\d+) (\S*):(\d+)")
# What a script hears that comes upon a key at the other end; Redis before 7, since 7, Valkey since 8.
_HALF_MOVED = re.compile(r"(?:^|-)TRYAGAIN\b|non local key|undeclared keys were accessed during rehashing")


def redirect_of(error: object, asked: NodeAddress) -> Moved | Ask | TryAgain | None:
    """What this answer of the node that was asked says, if it is an error, about where the slot is; None: nothing."""
    reply = error.__cause__ if isinstance(error, DistLockError) else None
    if not isinstance(reply, ErrorReply):
        return None
    text = str(reply)
    elsewhere = _ELSEWHERE.match(text)
    if elsewhere is not None:
        kind, slot, host, port = elsewhere.groups()
        to = NodeAddress(host or asked.host, int(port))  # no host: the one that we know
        return Moved(int(slot), to) if kind == "MOVED" else Ask(to)
    return TryAgain() if _HALF_MOVED.search(text) else None
