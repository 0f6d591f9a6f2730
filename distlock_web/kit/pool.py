"""A bounded pool of connections of any driver, for threads. No exception leaves it with fewer of them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..core.runtime import ThreadParker, drive, now

T = TypeVar("T")
P = TypeVar("P", bound="Pooled")

#: Seconds after which a thread that waits for a connection looks by itself: the thread that should wake it may be gone.
MAX_SLEEP = 0.05


class AllInUse(Exception):
    """No connection has become free."""


class Pooled:
    """One connection, used by one thread at a time. It has a place in its pool until it is closed, or is garbage."""

    __slots__ = ("__weakref__", "_pool", "batch", "was_idle")

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool
        self.batch = pool.batch  #: those that are let go of together
        self.was_idle = False  #: it was open already: it may have ended meanwhile

    def open(self, timeout: float | None) -> None:
        """Connect, within ``timeout`` seconds where the driver can."""
        raise NotImplementedError

    def close(self) -> None:
        """Also where it could not be opened."""
        raise NotImplementedError

    def end(self, *, usable: bool = True) -> None:
        """It is free for the next one; or closed, if it cannot be used again."""
        pool = self._pool
        if not usable or self.batch is not pool.batch:
            pool.discard(self)
            return
        self.was_idle = True
        pool.idle.append(self)
        if self.batch is not pool.batch:  # dropped meanwhile, by one that may have come before it was idle
            pool.drop_idle()
        if pool.waiting:
            pool.wake_one()


class Lent(Pooled, Generic[T]):
    """A connection that these two functions open, within the seconds that they are given, and close."""

    __slots__ = ("_close", "_connect", "connection")

    def __init__(self, connect: Callable[[float | None], T], close: Callable[[T], None], pool: Pool[Any]) -> None:
        super().__init__(pool)
        self._connect, self._close = connect, close
        self.connection: T  #: missing until it is open

    def open(self, timeout: float | None) -> None:
        self.connection = self._connect(timeout)

    def close(self) -> None:
        if hasattr(self, "connection"):
            self._close(self.connection)


class Pool(Generic[P]):
    """At most ``size`` connections; a thread that finds none free waits ``patience`` seconds for one.

    The exception of a signal's handler may come after any call. So the pool has weak references to what it has lent: a
    connection whose thread was interrupted anywhere leaves its place by itself.
    """

    def __init__(self, size: int, patience: float, new: Callable[[Pool[Any]], P]) -> None:
        self.size = size
        self._patience = patience
        self._new = new
        # Reentrant: garbage that is collected inside may release a lock of its own. No Condition: it is left by code in
        # Python, and an exception that comes there would keep it locked.
        self._adding = threading.RLock()
        self._places: weakref.WeakSet[P] = weakref.WeakSet()
        self.idle: deque[P] = deque()
        self.batch = object()  #: of the connections that are opened now
        self.waiting: deque[ThreadParker] = deque()

    @property
    def in_use(self) -> int:
        return len(self._places) - len(self.idle)

    def borrow(self, timeout: float | None = None) -> P:
        """The connection that was used last, or a new one, which opens within ``timeout``; nor does it wait longer.

        Raises :class:`AllInUse`, and what opening raises.
        """
        until = now() + (self._patience if timeout is None else min(self._patience, timeout))
        while (pooled := self._take() or self._add()) is None:
            self._wait(until - now())
        if not pooled.was_idle:
            try:
                pooled.open(timeout)
            except BaseException:
                self.discard(pooled)  # it is no garbage while the exception is kept, and with it this frame
                raise
        return pooled

    def discard(self, pooled: P) -> None:
        """It broke, or its answers will not be read."""
        try:
            pooled.close()  # first: the server never sees more of them
        finally:
            self._places.discard(pooled)
            self.wake_one()

    def drop(self) -> None:
        """Close every connection: those that are in use when they are given back."""
        self.batch = object()
        self.drop_idle()

    def drop_idle(self) -> None:
        while (pooled := self._take()) is not None:
            self.discard(pooled)

    def wake_one(self) -> None:
        if self.waiting:
            try:
                self.waiting.popleft().unpark()
            except IndexError:  # another thread has just woken the last one
                pass

    def _take(self) -> P | None:
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def _add(self) -> P | None:
        """One more, to be opened; None: all places are taken."""
        pooled = self._new(self)
        with self._adding:
            if len(self._places) >= self.size:
                return None
            self._places.add(pooled)
        return pooled

    def _wait(self, left: float) -> None:
        if left <= 0:
            raise AllInUse
        parker = ThreadParker()
        self.waiting.append(parker)
        try:
            if not self.idle and len(self._places) >= self.size:  # else one was given back meanwhile
                drive(parker.park(min(left, MAX_SLEEP)))
        finally:
            try:
                self.waiting.remove(parker)
            except ValueError:  # it was woken
                pass
