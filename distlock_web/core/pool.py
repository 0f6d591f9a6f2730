"""A bounded pool of connections of any driver, for threads. No exception leaves it with fewer of them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .runtime import ThreadParker, drive, now

T = TypeVar("T")

#: Seconds after which a thread that waits for a connection looks by itself: whoever should wake it may be gone.
MAX_SLEEP = 0.05


class AllInUse(Exception):
    """No connection has become free."""


class Lent(Generic[T]):
    """One connection in use, by one thread. It has a place in the pool until it is given back, or is garbage."""

    __slots__ = ("__weakref__", "batch", "connection")

    def __init__(self) -> None:
        self.batch: object = None  #: those that are let go of together
        self.connection: T  #: missing until it is connected


class Pool(Generic[T]):
    """At most ``size`` connections; whoever finds none free waits ``patience`` seconds for one.

    The exception of a signal's handler may come after any call. So the pool counts what exists, and not what was taken
    and given back: what it has lent to a thread that was interrupted leaves its place by itself.
    """

    def __init__(self, size: int, patience: float, connect: Callable[[], T], close: Callable[[T], None]) -> None:
        self.size = size
        self._patience = patience
        self._connect = connect
        self._close = close
        # Reentrant: garbage that is collected inside may release a lock of its own. No Condition: it is left by code in
        # Python, and an exception that comes there would keep it locked.
        self._changing = threading.RLock()
        self._lent: weakref.WeakSet[Lent[T]] = weakref.WeakSet()
        self._idle: deque[T] = deque()
        self._batch = object()  # of the connections that are idle, and of those that are made now
        self._waiting: deque[ThreadParker] = deque()

    def borrow(self) -> Lent[T]:
        """The connection that was used last, or a new one. Raises :class:`AllInUse`, and what connecting raises."""
        lent = self._take()
        if lent is None:
            lent = self._wait()
        if not hasattr(lent, "connection"):
            try:
                lent.connection = self._connect()
            except BaseException:
                self._leave(lent)  # it is no garbage while somebody has the exception, and with it this frame
                raise
        return lent

    def give_back(self, lent: Lent[T], *, usable: bool = True) -> None:
        """It is free for the next one; or closed, if it cannot be used again."""
        with self._changing:
            kept = usable and lent.batch is self._batch
            if kept:
                self._lent.discard(lent)
                self._idle.append(lent.connection)
        if kept:
            self._wake_one()
            return
        try:
            self._close(lent.connection)  # first: the server never sees more of them
        finally:
            self._leave(lent)

    def drop(self) -> None:
        """Close every connection: those that are in use when they are given back."""
        with self._changing:
            self._batch = object()
            idle, self._idle = self._idle, deque()
        for connection in idle:
            self._close(connection)

    def _take(self) -> Lent[T] | None:
        """A place, with a connection if one is idle. None: all are taken."""
        lent: Lent[T] = Lent()
        with self._changing:
            lent.batch = self._batch
            if self._idle:
                lent.connection = self._idle.pop()
            elif self._is_full():
                return None
            self._lent.add(lent)
        return lent

    def _is_full(self) -> bool:
        return len(self._lent) >= self.size

    def _wait(self) -> Lent[T]:
        until = now() + self._patience
        while (left := until - now()) > 0:
            parker = ThreadParker()
            self._waiting.append(parker)
            try:
                if self._is_full():  # else one was given back meanwhile
                    drive(parker.park(min(left, MAX_SLEEP)))
            finally:
                try:
                    self._waiting.remove(parker)
                except ValueError:  # it was woken
                    pass
            if (lent := self._take()) is not None:
                return lent
        raise AllInUse

    def _leave(self, lent: Lent[T]) -> None:
        self._lent.discard(lent)
        self._wake_one()

    def _wake_one(self) -> None:
        if self._waiting:
            try:
                self._waiting.popleft().unpark()
            except IndexError:  # somebody else has just woken the last one
                pass
