"""What the watchdog looks after: a hold, how long it is renewed, and who has to live for that."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from .hold import Hold
from .scope import Scope


class WatchedHold:
    """A hold that the watchdog looks after: renewed until ``until``, or only watched for its deadline."""

    __slots__ = ("_at_once", "_resumed", "alive", "due", "gone", "hold", "renew", "until")

    def __init__(
        self,
        hold: Hold,
        renew: bool,
        until: float | None = None,
        alive: Callable[[], bool] = lambda: True,
        gone: Callable[[], None] | None = None,
    ) -> None:
        self.hold = hold
        self.renew = renew
        self.due: float
        self.until = until  #: by our clock; None: as long as it is held
        self.alive = alive
        self.gone = gone  #: called once when the holder is found dead; left out, the lease is left to end by itself
        self._at_once = False
        self._resumed = False
        self.schedule()

    @property
    def period(self) -> float:
        """Seconds between two renewals."""
        return self.hold.claim.expire / 3

    def schedule(self) -> None:
        # Two thirds of the lease before its end, not one third from now on: a lease that comes here with little left
        # is due at once.
        self.schedule_at(self.hold.deadline - 2 * self.period if self.renew else self.hold.deadline)

    def schedule_at(self, moment: float) -> None:
        """It is due at this moment."""
        self.due = moment
        if self._at_once:  # said while it was being renewed
            self.due = 0.0

    def schedule_now(self) -> None:
        """It is due now; if it is just being renewed, again after that."""
        self._at_once = True
        self.due = 0.0

    def begin_check(self) -> None:
        """From here on ``schedule_now`` and ``resume`` ask for a further check."""
        self._at_once = self._resumed = False

    def only_watch(self) -> None:
        """From now on it is not renewed, only watched, to its deadline."""
        self.renew = False
        if self._resumed:  # while it was found that nobody would release it
            self.renew = True
        self.schedule()

    def resume(self) -> None:
        """Renew it again, from any thread: somebody has entered it."""
        self._resumed = True  # first: only_watch() may run at this moment, and looks at it last
        self.renew = True
        self._resumed = True  # again: of a check that has begun in between only_watch() is still to come
        self.schedule_now()


def holder_alive(scope: Scope) -> Callable[[], bool]:
    """Whether anybody is left who could release: a dead holder's lease must not be renewed for ever.

    Somebody must have the scope still, and the task or thread in it must live, or have ended only lately.
    """
    reference = weakref.ref(scope)

    def alive() -> bool:
        scope = reference()
        return scope is not None and not scope.abandoned()

    return alive
