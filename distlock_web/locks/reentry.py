"""The gate inside a hold: siblings that inherited the same hold take turns in re-entering it (law 2)."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from ..core.runtime import Parker, Runtime

#: ``closed``: the outer block has ended.
Turn: TypeAlias = Literal["ours", "busy", "closed"]


class ReentryGate:
    """Lets one nested block at a time into a hold, first come, first served.

    Siblings are tasks or threads that inherited the same hold. If all of them re-entered, they would exclude nobody.

    Garbage that is collected inside of a method may leave the gate, in this very thread. So the mutex is reentrant, and
    each method is right wherever that happens.
    """

    __slots__ = ("_closed", "_inside", "_lock", "_taken", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._taken = False
        self._inside: weakref.ref[object] | None = None
        self._closed = False
        self._waiting: deque[Parker] = deque()

    def try_enter(self) -> Turn:
        """Enter if nobody is inside."""
        with self._lock:
            if self._closed:
                return "closed"
            if self._taken:
                return "busy"
            self._taken = True
            return "ours"

    def leave_with(self, inside: object, leave: Callable[[], None]) -> None:
        """Who has our turn is this object: when it is garbage, nobody will ever ``leave`` by hand."""
        self._inside = weakref.ref(inside, lambda _: leave())

    async def enter(self, runtime: Runtime, wait: float | None) -> Turn:
        """Wait for our turn, at most ``wait`` seconds (None: for ever)."""
        parker = runtime.parker()
        with self._lock:
            self._waiting.append(parker)
            turn = self.try_enter()  # from here on who leaves sees us
            if turn != "busy":
                self._waiting.remove(parker)
                return turn
        try:
            woken = await parker.park(wait)
        except BaseException:
            if not self._give_up(parker):
                self.leave()
            raise
        if not woken and self._give_up(parker):
            return "busy"
        return "closed" if self._closed else "ours"

    def _give_up(self, parker: Parker) -> bool:
        """Stop waiting. False: it became our turn at this very moment."""
        with self._lock:
            try:
                self._waiting.remove(parker)
            except ValueError:
                return self._closed
            return True

    def leave(self) -> None:
        """Let the next one in, of those whose event loop still runs."""
        with self._lock:
            self._inside = None
            self._taken = self._wake_next()

    def close(self) -> None:
        """The outer block has ended: whoever waits here takes the lock from the store, like everybody else."""
        with self._lock:
            self._closed = True
            while self._wake_next():
                pass

    def _wake_next(self) -> bool:
        while self._waiting:
            try:
                parker = self._waiting.popleft()
            except IndexError:
                return False
            if parker.unpark():
                return True
        return False
