"""What the ports of one process remember together, and how votes are counted."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...core.backend import Busy, Claim, Granted, Loss
from ...core.errors import BackendUnavailable
from ...core.runtime import now
from .node import Node
from .quorum import Part
from .wire import Question

#: Microseconds that a proposed fence is ahead of the nodes' clocks as we last heard them: more than an answer takes, so
#: that what a node gave by its own clock meanwhile is less, and all of them can agree on it.
AHEAD_US = 2000

#: Leases that are remembered. Of one that is not, nothing but its repair is left undone.
HELD_KEPT = 10_000
#: Releases that are remembered.
RELEASED_KEPT = 500

DICE = random.SystemRandom()  # a forked child throws others than its parent


class Held(NamedTuple):
    fence: int
    begun: float  #: our clock before it was asked for
    question: Question | None  #: by which it was got, if that went over a lane; some nodes may not have answered yet


class Ledger:
    """By token, for as long as it is held or waited for. Every change is one step: nothing here waits for a lock."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.queued: dict[str, Node] = {}  #: in whose queue it stands
        #: Whose votes do not count for it: something there is still to be undone.
        self.barred: dict[str, set[Node]] = {}
        self.released: deque[str] = deque(maxlen=RELEASED_KEPT)  #: a second time is no loss
        self._fence = 0

    def knows(self, token: str) -> bool:
        """Whether it stands in a queue, or has a node that does not count."""
        return token in self.queued or bool(self.barred.get(token))

    def bar(self, node: Node, claim: Claim) -> None:
        """Its vote does not count before it has confirmed that what it has given the claim, or may give, is undone."""
        barred = self.barred.setdefault(
            claim.token, set()
        )  # stays when it is empty: another thread may be adding to it
        _forget_the_oldest(self.barred)
        if node not in barred:
            barred.add(node)
            node.cancel_later(claim, partial(barred.discard, node))

    def open(self, token: str, held: Held) -> None:
        self._fence = max(self._fence, held.fence)
        self.held[token] = held
        _forget_the_oldest(self.held)  # of leases that were lost nobody tells
        self.queued.pop(token, None)

    def close(self, token: str) -> Held | None:
        self.queued.pop(token, None)
        self.barred.pop(token, None)
        held = self.held.pop(token, None)
        if held is not None and held.question is not None:
            held.question.undo = True
        return held

    def propose(self, nodes: Iterable[Node]) -> int:
        """A fence that is probably greater than every one before, on all nodes."""
        ahead = [node.ahead_us for node in nodes if node.ahead_us is not None]
        clock = max(ahead) + int(now() * 1_000_000) if ahead else time.time_ns() // 1000
        self._fence = max(self._fence + 1, clock + AHEAD_US)
        return self._fence


def _forget_the_oldest(remembered: dict[str, Any]) -> None:
    if len(remembered) > 2 * HELD_KEPT:
        for old in list(remembered)[:HELD_KEPT]:
            remembered.pop(old, None)


class SplitVote(Busy):
    """Nobody has a majority: to ask again soon may help."""


def outvoted(refusals: Sequence[Busy], split: bool, longest_pause: float) -> Busy:
    """The lead has let us in, and others have not."""
    last = max(refusals, key=lambda busy: busy.remaining, default=Busy(longest_pause, longest_pause))
    pause = min(last.remaining, DICE.uniform(longest_pause / 2, longest_pause))
    return (SplitVote if split else Busy)(pause, last.remaining, 0, last.holder, last.held_for)


def every_answer(parts: Sequence[Part[Any]]) -> bool:
    """Never enough: every node that can has to answer."""
    return False


def count_kept(parts: Sequence[Part[Loss | None]]) -> int:
    """How many nodes say that the lease was ours until now."""
    return sum(part.done and part.error is None and part.value is None for part in parts)


def by_claim(
    parts: Sequence[Part[list[Loss | None]]], barred: Sequence[Collection[Node]]
) -> list[dict[Node, Loss | None]]:
    """What the nodes answered about each claim, but for those that have no vote for it."""
    answers = {part.node: part.value for part in parts if part.value is not None}
    return [
        {node: answer[index] for node, answer in answers.items() if node not in without}
        for index, without in enumerate(barred)
    ]


def may_have_it(part: Part[Granted | Busy] | Part[Granted | None]) -> bool:
    return isinstance(part.value, Granted) or not part.done


def failed_at_it(part: Part[Any]) -> bool:
    """Nobody knows what it has done, or will do yet."""
    return part.asked and isinstance(part.error, BackendUnavailable)


def loss_of(given: Sequence[Loss | None], needed: int) -> Loss:
    """Why a lease that has no majority is gone."""
    if "revoked" in given:
        return "revoked"
    return "taken" if given.count("taken") >= needed else "expired"
