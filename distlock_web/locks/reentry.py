"""The gate inside a hold: siblings that inherited the same hold take turns in re-entering it (law 2)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal

from ..core.runtime import Parker, Runtime


class ReentryGate:
    """Lets one nested block at a time into a hold, first come, first served.

    Siblings are tasks or threads that inherited the same hold. If all of them re-entered, they would exclude nobody.
    """

    __slots__ = ("_closed", "_lock", "_taken", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._closed = False
        self._waiting: deque[Parker] = deque()

    async def enter(self, runtime: Runtime, wait: float | None) -> Literal["ours", "busy", "closed"]:
        """Wait for our turn, at most ``wait`` seconds (None: for ever). ``closed``: the outer block has ended."""
        with self._lock:
            if self._closed:
                return "closed"
            if not self._taken:
                self._taken = True
                return "ours"
            if wait is not None and wait <= 0:
                return "busy"
            parker = runtime.parker()
            self._waiting.append(parker)
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
            if parker in self._waiting:
                self._waiting.remove(parker)
                return True
            return self._closed

    def leave(self) -> None:
        """Let the next one in."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().unpark()
            else:
                self._taken = False

    def close(self) -> None:
        """The outer block has ended: whoever waits here takes the lock from the store, like everybody else."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().unpark()
