"""No connection to a file of SQLite is open while the process forks.

SQLite keeps in the process which locks it has on a file. A child inherits the bookkeeping and not the locks: it would
wait for one that nobody has, or take itself for safe where it is not. So the connections are closed before a fork, when
none is in use, and both sides open their own again. What is in memory stays: to close it would be to lose it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ...core.pool import Pool
from ...core.runtime import after_fork, around_fork, now

#: Seconds that a fork waits for the transactions of other threads, and they for it.
MAX_DELAY = 5.0
#: Seconds between two looks meanwhile.
PAUSE = 0.001


class _Passing:
    """One transaction. It counts as long as it exists: an exception that comes between two steps keeps no fork out."""


class ForkGate:
    """Transactions pass it; a fork waits until none is inside, and closes it meanwhile.

    Each side says first that it comes, and then looks for the other. No lock is involved: a signal's exception would
    leave it locked.
    """

    def __init__(self) -> None:
        self.inside: weakref.WeakSet[_Passing] = weakref.WeakSet()
        self._forking = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        transaction, until = _Passing(), now() + MAX_DELAY
        try:
            self.inside.add(transaction)
            while self._forking and now() < until:
                self.inside.discard(transaction)
                time.sleep(PAUSE)
                self.inside.add(transaction)
            yield
        finally:
            self.inside.discard(transaction)

    def close(self) -> None:
        self._forking, until = True, now() + MAX_DELAY
        while self.inside and now() < until:
            time.sleep(PAUSE)

    def open(self) -> None:
        self._forking = False


gate = ForkGate()
_pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def watch(pool: Pool[Any]) -> None:
    """Close the connections of this pool before a fork."""
    _pools.add(pool)


def passing() -> AbstractContextManager[None]:
    """A transaction on one of the connections."""
    return gate.passing()


def _before_fork() -> None:
    gate.close()
    for pool in list(_pools):
        pool.drop()


def _in_child() -> None:
    global gate, _pools
    gate, _pools = ForkGate(), weakref.WeakSet()  # those that there are have the parent's connections


around_fork(_before_fork, lambda: gate.open())
after_fork(_in_child)
