"""No connection to an SQLite is open while the process forks.

SQLite keeps in the process which locks it has on a file. A child inherits the bookkeeping and not the locks: it would
wait for one that nobody has, or take itself for safe where it is not. So the connections are closed before a fork, when
none is in use, and both sides open their own again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from ...core.runtime import after_fork, around_fork

#: Seconds that a fork waits for the transactions of other threads, and they for it.
MAX_DELAY = 5.0


class ForkGate:
    """Transactions pass it; a fork waits until none is inside, and closes it meanwhile."""

    def __init__(self) -> None:
        # Reentrant: garbage that is collected inside may release a lock of its own.
        self._changed = threading.Condition(threading.RLock())
        self._inside = 0
        self._forking = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking, MAX_DELAY)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: self._inside == 0, MAX_DELAY)

    def open(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()


gate = ForkGate()
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def watch(engine: Engine) -> None:
    """Close this engine's connections before a fork."""
    _engines.add(engine)


@contextmanager
def passing() -> Iterator[None]:
    """A transaction on one of the engines."""
    with gate.passing():
        yield


def _before_fork() -> None:
    gate.close()
    for engine in list(_engines):
        engine.dispose()


def _in_child() -> None:
    global gate, _engines
    gate, _engines = ForkGate(), weakref.WeakSet()  # those that there are have the parent's connections


around_fork(_before_fork, lambda: gate.open())
after_fork(_in_child)
