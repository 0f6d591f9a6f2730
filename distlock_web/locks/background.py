"""A function that is called in a thread of its own, behind a bounded queue: its caller never waits.

It may be called while garbage is collected, anywhere, and in a process that has forked.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..core.runtime import after_fork, now

logger = logging.getLogger("distlock_web")

#: Calls that may wait; what comes on top of them is dropped.
MAX_QUEUED = 10_000
#: Seconds that the idle thread stays before it ends.
IDLE_TIMEOUT = 1.0
#: Seconds that the end of the process waits for the calls that are queued.
MAX_EXIT_DELAY = 1.0


class Background:
    """``Background(function)(*args)`` calls ``function(*args)`` soon. What that raises is logged, once."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._start_or_end = threading.RLock()  # reentrant: garbage that is collected inside may call, too
        self._queue: queue.SimpleQueue[tuple[Any, ...] | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._dropping = False
        self._failed = False
        _all.add(self)

    def __repr__(self) -> str:
        return f"<Background {self._function!r}>"

    def __call__(self, *args: Any) -> None:
        if self._thread is threading.current_thread():
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
        if (self._queue.empty() and self._thread is None) or self._thread is threading.current_thread():
            return
        done = threading.Event()
        self._put(done)
        done.wait(max(0.0, timeout))

    def stop(self) -> None:
        """Do what is queued; then the thread ends, without waiting for more."""
        self._stopped = True
        self._queue.put(threading.Event())  # wakes it

    def after_fork(self) -> None:
        self._start_or_end = threading.RLock()
        self._queue = queue.SimpleQueue()  # what is queued is done in the parent
        self._thread = None

    def _put(self, queued: tuple[Any, ...] | threading.Event) -> None:
        self._queue.put(queued)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._start_or_end:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="distlock-events", daemon=True)
            self._thread = thread  # before it runs: it asks whether it is the one
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or the interpreter ends: no reason for a lock to fail
                self._thread = None
                logger.warning("The events of locks wait for a thread: %s", error)

    def _run(self) -> None:
        while True:
            try:
                queued = self._queue.get(timeout=0.0 if self._stopped else IDLE_TIMEOUT)
            except queue.Empty:
                if self._end():
                    return
                continue
            if isinstance(queued, threading.Event):
                queued.set()
                continue
            try:
                self._function(*queued)
            except BaseException:  # also a sys.exit(): without the thread nobody would be told any more
                if not self._failed:
                    self._failed = True
                    logger.exception("The listener %r to the events of locks failed; not logged again.", self._function)

    def _end(self) -> bool:
        with self._start_or_end:
            self._thread, mine = None, self._thread
            if not self._queue.empty():  # who comes after this finds no thread, and starts one
                self._thread = mine
                return False
            return True


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _forked() -> None:
    for each in list(_all):
        each.after_fork()


@atexit.register
def _flush() -> None:
    until = now() + MAX_EXIT_DELAY
    for each in list(_all):
        each.flush(until - now())


after_fork(_forked)
