"""When the leases end that callers of this process wait for, as the last of them to ask was told.

Whoever waits for a lock sleeps until the lease of its holder ends, and asks. Where a store has to be asked in threads
of ours, in transactions that wait for each other, the waiters of a process would all ask at that moment, and their
holder's own extension, or the next one's acquisition, would have to wait behind them. So the first of them asks. The
others, who wake a moment later, sleep on if it was told of the same holding that they know of: the lease has been
extended. Of another holding each asks for itself, for it may be its own, of which it has not heard.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import NamedTuple

from .backend import Busy, Claim
from .runtime import now

#: Seconds that each place in the queue adds to a sleep: a lease that ends wakes one, which has asked by then.
PLACE = 0.01
#: Seconds that one who was not the first to ask leaves to it the next time, once to twice.
LEAD = 0.025
#: Seconds after which everybody asks for itself: a store may take one that has not been heard of for dead.
MAX_SILENT = 5.0
#: Seconds by which two answers may differ about when a lock was taken.
TICK = 0.01
#: Names that are remembered: the others' waiters ask for themselves.
MAX_NAMES = 1000


def stagger(ahead: int, expire: float) -> float:
    """Seconds after the end of a lease at which the waiter asks who has so many others in front of it.

    Below ``expire``, the lease that it wants: whatever happens to those in front costs it no more than that.
    """
    seconds = ahead * PLACE
    return seconds if seconds < expire / 2 else expire * random.uniform(0.5, 1)  # noqa: S311 - no secret


class _Told(NamedTuple):
    """An answer. Moments are by our clock."""

    asked: float  #: when it was asked for
    answered: float
    until: float  #: when the lease ends
    after: float  #: seconds after that at which its asker asks again
    busy: Busy


class LeaseEnds:
    """Of one port. Changed in single steps: garbage that is collected anywhere may cancel a claim."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, _Told] = OrderedDict()
        self._by_token: dict[str, _Told] = {}

    def told(self, claim: Claim, asked: float, busy: Busy) -> None:
        """What a claim that waits was answered."""
        after = max(0.0, busy.recheck_after - min(busy.remaining, claim.expire))
        moment = now()
        told = _Told(asked, moment, moment + busy.remaining, after, busy)
        self._by_token[claim.token] = self._by_name[claim.name] = told
        while len(self._by_name) > MAX_NAMES:
            self._by_name.popitem(last=False)

    def forget(self, token: str) -> None:
        self._by_token.pop(token, None)

    def later(self, claim: Claim, since: float) -> Busy | None:
        """How long to sleep on, where another one has asked after ``since``. None: it is this claim's turn to ask."""
        own, other, moment = self._by_token.get(claim.token), self._by_name.get(claim.name), now()
        if own is None or other is None or other.asked <= since or moment - own.asked > MAX_SILENT:
            return None
        if not _of_same_holding(own, other):
            return None
        # Whoever stands in front of the other keeps its lead. The others leave the question to it.
        after = min(own.after, other.after + LEAD * random.uniform(1, 2))  # noqa: S311 - no secret
        asleep_until = min(other.until, other.asked + claim.expire) + after
        if asleep_until <= moment:
            return None
        self._by_token[claim.token] = own._replace(after=after)
        remaining = max(0.001, other.until - moment)
        return other.busy._replace(recheck_after=asleep_until - moment, remaining=remaining, position=own.busy.position)


def _of_same_holding(one: _Told, other: _Told) -> bool:
    """Whether both were told of a lock that was taken once: by the same holder, and at the same moment.

    When the store looked is known no better than that it was between the question and the answer.
    """
    ages = one.busy.held_for, other.busy.held_for
    if one.busy.holder != other.busy.holder or ages[0] is None or ages[1] is None:
        return False
    earliest = max(one.asked - ages[0], other.asked - ages[1])
    return earliest <= min(one.answered - ages[0], other.answered - ages[1]) + TICK
