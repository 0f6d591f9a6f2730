"""One name held under one token: its states, its deadline, and the seat for a nested hold."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..core.backend import Claim, Granted, drift
from ..core.errors import LeaseLost
from ..core.runtime import Parker, Process, Runtime, now

if TYPE_CHECKING:
    from ..core.registry import Store

#: held: ours. unsure: the store is not answering, the deadline has not come. releasing: the release is on its way.
State: TypeAlias = Literal["held", "unsure", "lost", "releasing", "released"]

logger = logging.getLogger("distlock_web")

_EXPLAIN = {
    "expired": "its lease of {expire:g} s ended before the block did (a longer expire, or renew=True, prevents that)",
    "taken": "its lease ended and somebody else has it now",
    "revoked": "it was released by force",
    "unreachable": "the store did not answer until the lease had ended",
    "ended": "the block that took it has ended",
    "forked": "it belongs to the process this one was forked from",
}


class Hold:
    """A lock as its holder knows it. Changes of state are atomic; nothing leads back from ``lost``."""

    __slots__ = (
        "_generation", "_lock", "_on_end", "_state", "claim", "deadline", "depth", "fence", "reason", "since", "store",
    )  # fmt: skip

    def __init__(self, store: Store, claim: Claim, granted: Granted) -> None:
        self.store = store
        self.claim = claim
        self.fence = granted.fence
        self.since = granted.since
        self.deadline = granted.since + claim.expire - drift(claim.expire)
        self.depth = 1
        self.reason: str | None = None
        self._state: State = "held"
        self._generation = Process.generation
        self._lock = threading.Lock()
        self._on_end: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        return self.claim.name

    @property
    def state(self) -> State:
        if self._state == "held" or self._state == "unsure":
            if self._generation != Process.generation:
                self._lock = threading.Lock()  # at the fork a thread that is not here may have held the parent's
                self.lose("forked")
            elif now() >= self.deadline:
                self.lose("expired" if self._state == "held" else "unreachable")
        return self._state

    @property
    def remaining(self) -> float:
        """Seconds that are surely left; 0 when the hold is over."""
        return max(0.0, self.deadline - now()) if self.state in ("held", "unsure") else 0.0

    def raise_if_lost(self) -> None:
        if self.state not in ("held", "unsure"):
            raise self.lost_error()

    def lost_error(self) -> LeaseLost:
        reason = self.reason or "ended"
        why = _EXPLAIN[reason].format(expire=self.claim.expire)
        return LeaseLost(f"The lock {self.name!r} is no longer held: {why}.", name=self.name, reason=reason)

    def renewed(self, since: float, expire: float) -> None:
        """The store has extended the lease: asked at ``since``, to at least ``expire`` seconds."""
        with self._lock:
            if self._state in ("held", "unsure"):
                self._state = "held"
                self.deadline = max(self.deadline, since + expire - drift(expire))

    def mark_unsure(self) -> None:
        """The store did not answer. Not a loss: the deadline decides."""
        with self._lock:
            if self._state == "held":
                self._state = "unsure"

    def lose(self, reason: str) -> None:
        with self._lock:
            if self._state in ("released", "lost"):
                return
            self._state, self.reason = "lost", reason
            callbacks, self._on_end = self._on_end, []
        _call(callbacks)

    def begin_release(self) -> bool:
        """From here on no renewal counts. False: there is nothing to release, the hold is lost or over."""
        _ = self.state  # a look at the deadline
        with self._lock:
            if self._state not in ("held", "unsure"):
                return False
            self._state = "releasing"
            return True

    def released(self) -> None:
        with self._lock:
            if self._state == "releasing":
                self._state = "released"
            callbacks, self._on_end = self._on_end, []
        if callbacks:
            _call(callbacks)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back, from any thread, once the hold is lost or released."""
        with self._lock:
            if self._state not in ("released", "lost"):
                self._on_end.append(callback)
                return
        callback()

    def forget_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._on_end:
                self._on_end.remove(callback)


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # An on_lost callback of the user's: its failure must not stop the renewal of other leases.
            logger.exception("on_lost failed")


class ReentryGate:
    """The one place inside a hold for a nested hold: siblings that run at once take turns, first come first served.

    Siblings are tasks or threads that inherited the same hold. If all of them re-entered, they would exclude nobody.
    """

    __slots__ = ("_closed", "_lock", "_taken", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._closed = False
        self._waiting: deque[Parker] = deque()

    async def take(self, runtime: Runtime, wait: float | None) -> Literal["ours", "busy", "closed"]:
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
        """Stop waiting. False: the seat was handed over at this very moment."""
        with self._lock:
            if parker in self._waiting:
                self._waiting.remove(parker)
                return True
            return self._closed

    def leave(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().unpark()
            else:
                self._taken = False

    def close(self) -> None:
        """The outer hold has ended: whoever waits here must take the lock like a stranger."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().unpark()
