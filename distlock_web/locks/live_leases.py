"""What a listener keeps of each lease that is held, until its end.

No event tells of the end of a lease that the program forgets: it is never released, and no code checks whether it was
lost. In the store it ends when its time is over, and so it does here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ..core.process import Process
from ..core.runtime import now
from .events import Event

T = TypeVar("T")

#: Seconds between two looks for leases that were never ended.
LOOK_EVERY = 1.0


class LiveLeases(Generic[T]):
    """By the number of a lease what a listener has begun for it. For one thread."""

    def __init__(self, forgotten: Callable[[T], object], inherited: Callable[[T], object]) -> None:
        self._forgotten = forgotten  # called with what was begun for a lease that was never ended
        self._inherited = inherited  # the same in a forked child: it is the parent's lease
        self._leases: dict[int, tuple[float, T]] = {}
        self._next_look = 0.0
        self._generation = Process.generation

    def begin(self, event: Event, value: T) -> None:
        """It is held from now on."""
        self.look()
        self._leases[event.lease] = (_end_of(event), value)

    def renew(self, event: Event) -> None:
        """It lives longer."""
        if (known := self._leases.get(event.lease)) is not None:
            self._leases[event.lease] = (_end_of(event), known[1])

    def end(self, event: Event) -> T | None:
        """It is over. None: its beginning was not seen, or it has ended here already."""
        known = self._leases.pop(event.lease, None)
        return None if known is None else known[1]

    def look(self) -> None:
        """Call back for those that are over, and for those of the process that forked this one."""
        if self._generation != Process.generation:
            self._generation, inherited = Process.generation, self._leases
            self._leases = {}
            for _, value in inherited.values():
                self._inherited(value)
        moment = now()
        if moment >= self._next_look:
            self._next_look = moment + LOOK_EVERY
            for lease in [lease for lease, (end, _) in self._leases.items() if end <= moment]:
                self._forgotten(self._leases.pop(lease)[1])


def _end_of(event: Event) -> float:
    # The event comes later than what it tells of: this end is late by that, and never before the lease's own.
    return now() + event.expire


class BoundedTemplates:
    """Which templates may be labels: the first ``most`` of each store. All further ones share the label ``other``."""

    OTHER = "other"

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, set[str]] = {}

    def __call__(self, event: Event) -> str:
        known = self._known.setdefault(event.store, set())
        if event.template not in known:
            if len(known) >= self._most:
                return self.OTHER
            known.add(event.template)
        return event.template
