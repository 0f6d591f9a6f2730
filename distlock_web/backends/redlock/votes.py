"""What the ports of one process remember together, and how votes are counted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...core.backend import Loss
from .node import Node

#: Microseconds that a proposed fence is ahead of the nodes' clocks as we last heard them: more than an answer takes, so
#: that what a node gave by its own clock meanwhile is less, and all of them can agree on it.
AHEAD_US = 2000


#: Leases that are remembered. Of one that is not, nothing but its repair is left undone.
HELD_KEPT = 10_000


class Held(NamedTuple):
    fence: int
    begun: float  #: our clock before it was asked for


class Ledger:
    """By token, for as long as it is held or waited for. Every change is one step: nothing here waits for a lock."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.queued: dict[str, Node] = {}  #: in whose queue it stands
        self.barred: dict[
            str, set[Node]
        ] = {}  #: whose votes do not count for it: something there is still to be undone
        self._fence = 0

    def knows(self, token: str) -> bool:
        """Whether it stands in a queue, or has a node that does not count."""
        return token in self.queued or token in self.barred

    def open(self, token: str, fence: int, begun: float) -> None:
        self._fence = max(self._fence, fence)
        self.held[token] = Held(fence, begun)
        if len(self.held) > 2 * HELD_KEPT:  # of leases that were lost nobody tells
            for old in list(self.held)[:HELD_KEPT]:
                self.held.pop(old, None)
        self.queued.pop(token, None)

    def close(self, token: str) -> Held | None:
        self.queued.pop(token, None)
        self.barred.pop(token, None)
        return self.held.pop(token, None)

    def propose(self, nodes: Iterable[Node]) -> int:
        """A fence that is probably greater than every one before, on all nodes."""
        clock = max((node.server_time_us for node in nodes), default=0) or time.time_ns() // 1000
        self._fence = max(self._fence + 1, clock + AHEAD_US)
        return self._fence


def loss_of(given: Sequence[Loss | None], needed: int) -> Loss:
    """Why a lease that has no majority is gone."""
    if "revoked" in given:
        return "revoked"
    return "taken" if given.count("taken") >= needed else "expired"
