"""A function that is called in a thread of its own, behind a bounded queue: its caller never waits.

It may be called while garbage is collected, anywhere, and in a process that has forked.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..core.runtime import after_fork, now
from ..core.worker import MAX_EXIT_DELAY, Worker

logger = logging.getLogger("distlock_web")

#: Calls that may wait; what comes on top of them is dropped.
MAX_QUEUED = 10_000
#: Seconds that the idle thread stays before it ends.
IDLE_TIMEOUT = 1.0


class Background:
    """``Background(function)(*args)`` calls ``function(*args)`` soon. What that raises is logged, once."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._stopped = False
        self._dropping = False
        self._failed = False
        self.start_anew()
        _all.add(self)

    def __repr__(self) -> str:
        return f"<Background {self._function!r}>"

    def __call__(self, *args: Any) -> None:
        if self._worker.is_current():
            return  # the function itself takes locks, and would be called for ever
        if self._queue.qsize() >= MAX_QUEUED:
            if not self._dropping:
                self._dropping = True
                logger.error("%r cannot keep up with the events of locks: some are dropped.", self._function)
            return
        self._dropping = False
        self._put(args)

    def flush(self, timeout: float) -> None:
        """Wait, for so many seconds, until all that was queued before has been done."""
        if (self._queue.empty() and not self._worker.runs) or self._worker.is_current():
            return
        done = threading.Event()
        self._put(done)
        done.wait(max(0.0, timeout))

    def stop(self) -> None:
        """Do what is queued; then the thread ends, without waiting for more."""
        self._stopped = True
        self._worker.wake()

    def start_anew(self) -> None:
        """In a forked child, too: what is queued is done in the parent."""
        self._queue: queue.SimpleQueue[tuple[Any, ...] | threading.Event] = queue.SimpleQueue()
        self._idle_since = 0.0
        self._worker = Worker(
            "distlock-events", self._do_queued, self._is_left, last=lambda: self.flush(MAX_EXIT_DELAY)
        )

    def _put(self, queued: tuple[Any, ...] | threading.Event) -> None:
        self._queue.put(queued)
        self._worker.start()
        self._worker.wake()

    def _is_left(self) -> bool:
        if not self._queue.empty():
            self._idle_since = now()
            return True
        return not self._stopped and now() - self._idle_since < IDLE_TIMEOUT

    def _do_queued(self) -> float:
        while True:
            try:
                queued = self._queue.get_nowait()
            except queue.Empty:
                return IDLE_TIMEOUT
            self._idle_since = now()
            if isinstance(queued, threading.Event):
                queued.set()
                continue
            try:
                self._function(*queued)
            except BaseException:  # also a sys.exit(): without the thread nobody would be told any more
                if not self._failed:
                    self._failed = True
                    logger.exception("The listener %r to the events of locks failed; not logged again.", self._function)


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _forked() -> None:
    for each in list(_all):
        each.start_anew()


after_fork(_forked)
