"""The event of a loss, for threads and for tasks that wait for it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..core.process import check_process
from ..core.runtime import TASKS, THREADS, Runtime, drive, now, refuse_in_event_loop
from ..core.setting import Duration, check_timeout
from .scope import Scope, names_of


class Lost:
    """The event that a lease is lost: ``wait(timeout)`` for threads, ``await`` for tasks, ``if lease.lost:`` to check.

    An expiry sets it at the lease's deadline, before anybody else can have the lock. A force release sets it when this
    process learns of that: at the next renewal, ``extend()`` or release.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"<Lost {names_of(self._scope)}: {'set' if self.is_set() else 'unset'}>"

    def is_set(self) -> bool:
        check_process()
        return self._scope.state == "lost"

    def __bool__(self) -> bool:
        return self.is_set()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost (True), or until it is released or the time is over (False)."""
        refuse_in_event_loop("`await lease.lost`")
        return drive(self._wait(THREADS, None if timeout is None else check_timeout(timeout)))

    def __await__(self) -> Generator[Any, None, bool]:
        """Wait until the lease is lost (True) or released (False)."""
        return self._wait(TASKS, None).__await__()

    async def _wait(self, runtime: Runtime, timeout: float | None) -> bool:
        scope, parker = self._scope, runtime.parker()
        until = None if timeout is None else now() + timeout
        scope.on_end(parker.unpark)
        try:
            while scope.alive and scope.state in ("held", "unsure"):
                # Let through without a lock: nothing can be lost, and no event tells of the end.
                left = scope.remaining if scope.holds else 1.0
                if until is not None and (left := min(left, until - now())) <= 0:
                    break
                await parker.park(left + 0.001)  # a millisecond past the deadline, not one before it
            return self.is_set()
        finally:
            scope.forget_callback(parker.unpark)
