"""One thread at a time asks for a name: in the database they would wait for each other all the same, for its row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakValueDictionary


class Turns:
    """Of one process. Each would have a connection while it waits: a name that many want leaves none for the others,
    and a holder that extends its lease stands behind all of them."""

    def __init__(self) -> None:
        # Reentrant: garbage that is collected inside may take a lock of its own.
        self._changing = threading.RLock()
        self._locks: WeakValueDictionary[str, _Turn] = WeakValueDictionary()  # by name, while somebody uses it

    @contextmanager
    def of(self, name: str, seconds: float) -> Iterator[None]:
        """The block is entered alone, or after ``seconds`` beside the others: nobody waits for long who need not."""
        turn = self._turn(name)
        try:
            turn.lock.acquire(timeout=seconds)
            yield
        finally:
            # Its lock alone knows whether it is ours: a signal's exception may have come before we heard of it.
            with suppress(RuntimeError):
                turn.lock.release()

    def _turn(self, name: str) -> _Turn:
        with self._changing:
            return self._locks.setdefault(name, _Turn())


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # one that has an owner
