"""No connection to a file of SQLite is open while the process forks.

SQLite keeps in the process which locks it has on a file. A child inherits the bookkeeping and not the locks: it would
wait for one that is free, or take itself for safe where it is not. So the connections are closed before a fork, when
none is in use, and both sides open their own again.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...core.process import after_fork, around_fork
from ...core.runtime import now
from ...kit.pool import Pool

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
        self.pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()  #: whose connections are closed
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
        for pool in list(self.pools):
            pool.drop()

    def open(self) -> None:
        self._forking = False

    def forget(self) -> None:
        """In the child: what was the parent's has no owner here."""
        self.__init__()  # type: ignore[misc]


gate = ForkGate()
around_fork(gate.close, gate.open)
after_fork(gate.forget)
