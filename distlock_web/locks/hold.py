"""One name held under one token: its states and its deadline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from ..core.backend import DRIFT_RATIO, DRIFT_SECONDS, Claim, Granted, drift
from ..core.errors import LeaseLost, LossReason
from ..core.process import Process
from ..core.registry import Store
from ..core.request_id import HolderInfo
from ..core.runtime import now
from . import events

#: held: ours. unsure: the store is not answering, the deadline has not come. releasing: the release is on its way.
State: TypeAlias = Literal["held", "unsure", "lost", "releasing", "released"]

logger = logging.getLogger("distlock_web")

_EXPLAIN: dict[LossReason, str] = {
    "expired": "its lease of {expire:g} s ended before the block did, and was not renewed in time (see expire, renew, "
    "renew_for)",
    "taken": "its lease ended, and somebody else has it now",
    "revoked": "it was released by force",
    "unreachable": "the store did not answer until the lease had ended, or when it was to be handed over",
    "ended": "the block that took it has ended, or the one around it",
    "forked": "it belongs to the process this one was forked from",
}


class NestedTurn(Protocol):
    """The turn of a block in a hold of a block around it: ``reentry/gate.py`` has it."""

    hold: Hold
    since: float

    def is_at(self, gate: object) -> bool: ...
    def leave(self) -> None: ...
    def outlive(self) -> None: ...


class Hold:
    """A lock as its holder knows it. Changes of state are atomic; nothing leads back from ``lost``.

    To read ``state``, ``reason`` and ``remaining`` changes nothing; :meth:`check` makes a loss that is due happen.
    """

    __slots__ = (
        "_asked_until", "_early", "_generation", "_lock", "_on_end", "_reason", "_state",
        "claim", "deadline", "fence", "keep_until", "nested", "recorded", "since", "store", "template", "waited",
    )  # fmt: skip

    def __init__(self, store: Store, claim: Claim, granted: Granted, template: str = "", waited: float = 0.0) -> None:
        self.store = store
        self.claim = claim
        self.template = template  #: as in ``Spec``
        self.waited = waited  #: seconds in the queue
        self.fence = granted.fence
        self.since = granted.since
        #: By our clock, before the store's: another can begin only after it.
        self.deadline = granted.since + claim.expire - (claim.expire * DRIFT_RATIO + DRIFT_SECONDS)
        self._asked_until = self.deadline  # what was asked for, answered or not
        self.nested: set[NestedTurn] = set()  #: of the blocks that have re-entered it
        self.keep_until = 0.0  #: by our clock, as ``hold_at_least`` of a block that has re-entered it says
        self.recorded = False  #: of ``once``: it is kept by a record in the transaction of the work
        self._state: State = "held"
        self._reason: LossReason | None = None
        self._early = 0.0  #: seconds before the deadline that the store said it is not ours
        self._generation = Process.generation
        # Reentrant: garbage that is collected inside may end a block that is nested in this hold.
        self._lock = threading.RLock()
        self._on_end: list[Callable[[], object]] = []

    @property
    def name(self) -> str:
        return self.claim.name

    @property
    def depth(self) -> int:
        """How many blocks are inside of it."""
        return 1 + len(self.nested)

    @property
    def state(self) -> State:
        if self._state == "released" or self._due_loss() is None:
            return self._state
        return "lost"

    @property
    def reason(self) -> LossReason | None:
        """Why it is lost: expired, taken, revoked, unreachable or forked. None: it is not."""
        return self._reason or self._due_loss()

    @property
    def remaining(self) -> float:
        """Seconds that are surely left; 0 when the hold is over."""
        return max(0.0, self.deadline - now()) if self.state in ("held", "unsure") else 0.0

    def _due_loss(self) -> LossReason | None:
        """Why it is lost, though no one was told yet."""
        if self._state != "held" and self._state != "unsure":
            return None
        if self._generation != Process.generation:
            return "forked"
        if now() >= self.deadline:
            return "expired" if self._state == "held" else "unreachable"
        return None

    def check(self) -> bool:
        """Compare the deadline and the process, and make the loss happen if it is due. Whether it is held still."""
        if self._state == "held" and now() < self.deadline and self._generation == Process.generation:
            return True
        due = self._due_loss()
        if due is None:
            return self._state == "held" or self._state == "unsure"
        if due == "forked":
            self._lock = threading.RLock()  # at the fork a thread that is not here may have held the parent's
        self.lose(due)
        return False

    def lost_error(self, advice: str = "", *, otherwise: LossReason = "ended") -> LeaseLost:
        """What a block is told. ``otherwise``: why it has the hold no more, though that is not lost."""
        reason = self.reason or otherwise
        why = _EXPLAIN[reason].format(expire=self.claim.expire)
        if self._early:
            left = f"{self._early:.1f} s left (released by force, flushed, evicted or deleted)"
            why = f"the store dropped it, though its lease had {left}"
            if reason == "taken":
                why += ", and somebody else has it now"
        return LeaseLost(f"The lock {self.name!r} is no longer held: {why}.{advice}", name=self.name, reason=reason)

    def asks(self, since: float, expire: float) -> None:
        """An extension is on its way: if its answer is lost, the store may hold the lock for longer than we believe."""
        self._asked_until = max(self._asked_until, since + expire - drift(expire))

    @property
    def to_cancel(self) -> Claim | None:
        """What to cancel of a hold that is lost by our clock alone: the store may have it until then. None: nothing."""
        ours = self._state == "lost" and self._reason in ("expired", "unreachable") and not self._early
        return self.claim_to_the_end if ours and self._asked_until > self.deadline else None

    @property
    def claim_to_the_end(self) -> Claim:
        """The claim for as long as the store may have it, which an extension has made longer perhaps: what is to be
        given back is kept for so long where the store does not answer."""
        left = self._asked_until - now()
        return self.claim if left <= self.claim.expire else self.claim._replace(expire=left)

    def cancelled(self) -> None:
        """Nothing of it is left in the store."""
        self._asked_until = self.deadline

    def renewed(self, since: float, expire: float) -> None:
        """The store has extended the lease: asked at ``since``, to at least ``expire`` seconds.

        An answer that comes after the deadline is too late: the loss may have been seen by then.
        """
        if not self.check():
            return
        with self._lock:
            if self._due_loss() is None and self._state in ("held", "unsure"):
                self._state = "held"
                self.deadline = max(self.deadline, since + expire - drift(expire))

    def keep_by_record(self, since: float, cooldown: float) -> None:
        """A record that commits with the work keeps everybody else away. ``LeaseLost`` if it was lost before.

        What the store says of the lease from here on is no loss: the caller that finds the record ends the lease.
        """
        self.recorded = True
        self.renewed(since, cooldown)
        if not self.check():
            raise self.lost_error()

    def mark_unsure(self) -> None:
        """The store did not answer. Not a loss: the deadline decides."""
        if self.check():
            with self._lock:
                if self._state == "held":
                    self._state = "unsure"

    def lose(self, reason: LossReason) -> None:
        with self._lock:
            if self._state in ("released", "lost") or (self.recorded and self._due_loss() is None):
                return
            self._state, self._reason = "lost", reason
            if reason in ("expired", "taken"):
                self._early = max(0.0, self.deadline - now())
            callbacks, self._on_end = self._on_end, []
        self._call(callbacks)
        if events.listeners:
            self.tell("lost", reason)

    def begin_release(self) -> Literal["begun", "again", ""]:
        """From here on no renewal counts. Empty: there is nothing to release, the hold is lost or over.

        ``again``: a release that was interrupted goes on.
        """
        self.check()
        with self._lock:
            if self._state == "releasing":
                return "again"
            if self._state not in ("held", "unsure"):
                return ""
            self._state = "releasing"
            return "begun"

    def released(self, how: str) -> None:
        """It is over; ``how``, if it was not simply given back: as the event says it."""
        with self._lock:
            ended = self._state == "releasing"
            if ended:
                self._state = "released"
            callbacks, self._on_end = self._on_end, []
        if callbacks:
            self._call(callbacks)
        if ended and events.listeners:
            self.tell("released", how)

    def tell(self, kind: events.Kind, reason: str = "") -> None:
        """Tell those who listen what has happened to it. Asked for only if there is one."""
        claim = self.claim
        events.publish(
            kind,
            self.store.alias,
            claim.name,
            self.template,
            lease=claim.token.number,
            fence=self.fence,
            expire=self.remaining if kind == "renewed" else claim.expire,  # extended, it lives as long as was asked for
            waited=self.waited,
            held=max(0.0, now() - self.since),
            reason=reason,
            claimant=claim.holder,
        )

    def tell_of_failure(self, operation: str, error: BaseException) -> None:
        """The store has failed in this."""
        claim, template = self.claim, self.template
        events.failed(operation, self.store.alias, claim.name, template, error, claimant=claim.holder)

    def log_fields(self, event: str, **known: object) -> dict[str, object]:
        """``extra=`` for a log record about it, with the id of the request that holds it: the watchdog runs in none."""
        caller = HolderInfo.loads(self.claim.holder)
        known |= {"request_id": caller.request_id, "function": caller.function, "fence": self.fence}
        return events.log_fields(event, self.store.alias, self.name, self.template, **known)

    def renew_to(self, expire: float) -> None:
        """From now on it is renewed to ``expire`` seconds: a block inside of it asked for a longer lease."""
        self.claim = self.claim._replace(expire=expire)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call back, from any thread, once the hold is lost or released."""
        self.check()
        with self._lock:
            if self._state not in ("released", "lost"):
                self._on_end.append(callback)
                return
        callback()

    def forget_callback(self, callback: Callable[[], object]) -> None:
        self.check()
        with self._lock:
            if callback in self._on_end:
                self._on_end.remove(callback)

    def _call(self, callbacks: list[Callable[[], object]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # One callback's failure must not keep the others, or the renewal of other leases, from going on.
                logger.exception("A callback at the end of a lock failed", extra=self.log_fields("error"))
