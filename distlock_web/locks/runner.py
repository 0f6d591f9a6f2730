"""The task or the thread that a block runs in: who is to release its locks."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from ..core.runtime import in_event_loop, now


class Runner:
    """The task that runs now, or where there is none the thread."""

    __slots__ = ("_seen_ended", "_task", "_thread")

    def __init__(self) -> None:
        task = _current_task()
        # Weakly: a task refers to what it returns, which may be the lease.
        self._task = None if task is None else weakref.ref(task)
        # A callback of an event loop has no task, and no end of its own.
        self._thread = None if in_event_loop() else threading.current_thread()
        self._seen_ended: float | None = None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return None if self._task is None else self._task()

    def is_current(self) -> bool:
        """Whether it is what runs now."""
        if in_event_loop():
            return self.task is not None and self.task is _current_task()
        return self._thread is threading.current_thread()

    def ended_for(self) -> float:
        """Seconds since it was first seen to have ended; 0: it runs."""
        if self._runs():
            return 0.0
        if self._seen_ended is None:
            self._seen_ended = now()
        return now() - self._seen_ended

    def _runs(self) -> bool:
        if self._task is not None:
            task = self._task()
            return task is not None and not task.done()
        return self._thread is None or self._thread.is_alive()


def _current_task() -> asyncio.Task[Any] | None:
    return asyncio.current_task() if in_event_loop() else None
