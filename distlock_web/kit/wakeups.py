"""Where the callers of this process sleep that wait for a lock, in threads and in tasks, and when they ask again."""

from __future__ import annotations

from typing import Any

from ..core.runtime import DICE, Parker, Runtime

#: Seconds that each place in the queue adds to a sleep: a lease that ends wakes one, which has asked by then.
PLACE = 0.01


def stagger(ahead: int, expire: float) -> float:
    """Seconds after the end of a lease at which the waiter asks who has so many others in front of it.

    Below ``expire``, the lease that it wants: whatever happens to those in front costs it no more than that.
    """
    seconds = ahead * PLACE
    return seconds if seconds < expire / 2 else expire * DICE.uniform(0.5, 1)


class Wakeups:
    """Where the waiters of this process sleep, by token. A wake-up that comes before the sleep is not lost."""

    def __init__(self) -> None:
        self._parkers: dict[str, Parker] = {}
        self._reasons: dict[str, Any] = {}

    def expect(self, token: str, runtime: Runtime) -> Parker:
        return self._parkers.setdefault(token, runtime.parker())

    def expected(self) -> frozenset[str]:
        """Who waits here, or has just asked and may have to: their tokens."""
        return frozenset(self._parkers.copy())

    def expects(self, token: str) -> bool:
        return token in self._parkers

    def note(self, token: str, reason: Any) -> None:
        """What this waiter waits for, in the store's own terms, until it is forgotten."""
        self._reasons[token] = reason

    def waiting(self) -> dict[str, Any]:
        """What is noted of those who wait here, by their tokens."""
        reasons = self._reasons.copy()  # first: who begins to wait after this is none that waits no more
        for token in reasons.keys() - self.expected():  # noted by a thread whose caller had gone
            del reasons[token]
            self._reasons.pop(token, None)
        return reasons

    def wake(self, token: str) -> bool:
        """Whether a waiter sleeps here under this token, and hears it."""
        parker = self._parkers.get(token)
        return parker is not None and parker.unpark()

    def wake_all(self) -> None:
        """Everybody asks again: what was to be heard may have been lost."""
        for parker in list(self._parkers.values()):
            parker.unpark()

    def forget(self, token: str) -> None:
        self._parkers.pop(token, None)
        self._reasons.pop(token, None)
