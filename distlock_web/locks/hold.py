"""One name held under one token: its states, its deadline, and the gate through which nested blocks enter it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from ..core.backend import DRIFT_RATIO, DRIFT_SECONDS, SHARED, Claim, Granted, drift
from ..core.errors import LeaseLost, LossReason
from ..core.process import Process, check_process
from ..core.registry import Store
from ..core.request_id import HolderInfo
from ..core.runtime import Parker, Runtime, now
from . import events

#: What a nested block hears at the gate; ``full``: as many wait as it lets; ``closed``: the outer block has ended.
Admission: TypeAlias = Literal["ours", "busy", "full", "closed"]

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
        self.nested: set[Turn] = set()  #: of the blocks that have re-entered it
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
        """Why it is lost though nobody has been told yet."""
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

    def raise_if_lost(self) -> None:
        if not self.check():
            raise self.lost_error()

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
        if not ours or self._asked_until <= self.deadline:
            return None
        return self.claim_to_the_end

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

        An answer that comes after the deadline is too late: somebody may have seen the loss by then.
        """
        if not self.check():
            return
        with self._lock:
            if self._due_loss() is None and self._state in ("held", "unsure"):
                self._state = "held"
                self.deadline = max(self.deadline, since + expire - drift(expire))

    def keep_by_record(self, since: float, cooldown: float) -> None:
        """A record that commits with the work keeps everybody else away. ``LeaseLost`` if it was lost before.

        What the store says of the lease from here on is no loss: whoever finds the record ends the lease.
        """
        self.recorded = True
        self.renewed(since, cooldown)
        self.raise_if_lost()

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

    def released(self, how: str = "") -> None:
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
        """Tell those who listen what has happened to it. Asked for only if somebody does."""
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


class Nested(Protocol):
    """A block that is inside of a hold of a block around it."""

    def outlive(self, hold: Hold) -> None:
        """The block around has ended before this one."""


class Turn:
    """Of one nested block in a hold of a block around it.

    It is the block's before it is asked for, and left as often as one likes: so a signal's exception may come between
    any two steps, and whoever ends the block leaves it.
    """

    __slots__ = ("_block", "_generation", "gate", "hold", "parker", "since")

    def __init__(self, gate: ReentryGate, block: Nested) -> None:
        self.hold = gate.hold
        self.gate = gate
        self.parker: Parker | None = None  #: who waits for it
        self.since = 0.0  #: by our clock, when it came
        self._generation = Process.generation
        # When the block is garbage, nobody will ever leave by hand.
        self._block: weakref.ref[Nested] | None = weakref.ref(block, self._forgotten)

    def _forgotten(
        self, _: object, check: Callable[[], object] = check_process, process: type[Process] = Process
    ) -> None:  # bound here: at the end of the interpreter the names of modules go before their objects
        check()
        if self._generation == process.generation:  # else at the fork a thread that is not here may have had its mutex
            self.leave()

    def leave(self) -> None:
        """The block is not inside of the hold any more, and does not wait for it."""
        self.hold.nested.discard(self)
        self.gate.leave(self)
        self._block = None

    def outlive(self) -> None:
        """The block around has ended: this one is without the lock from now on, and is told."""
        reference = self._block
        if reference is not None and (block := reference()) is not None:
            block.outlive(self.hold)


class ReentryGate:
    """Lets one nested block at a time into a hold, first come, first served; into a shared one, all that come.

    Siblings are tasks or threads that inherited the same hold. If all of them re-entered, they would exclude nobody.
    Inside a shared hold there are only others that exclude nobody. Each block has gates of its own into its holds: who
    came in by one is inside until that block ends, though the hold may go on.

    Garbage that is collected inside of a method may leave the gate, in this very thread. So the mutex is reentrant, and
    each method is right wherever that happens. To be woken is a hint: whoever wakes looks whether it may enter.
    """

    __slots__ = ("_closed", "_inside", "_lock", "_shared", "_waiting", "hold")

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self._shared = hold.claim.token.limit == SHARED
        self._lock = threading.RLock()
        self._inside: Turn | None = None
        self._closed = False
        self._waiting: deque[Turn] = deque()

    def try_enter(self, turn: Turn) -> Admission:
        """Enter if nobody is inside, and nobody waits in front."""
        with self._lock:
            if self._closed:
                return "closed"
            if not self._shared and (self._inside is not None or (self._waiting and self._waiting[0] is not turn)):
                return "busy"
            self._inside = turn
            turn.since = now()
            self.hold.nested.add(turn)
            self._forget(turn)
            return "ours"

    async def enter(self, turn: Turn, runtime: Runtime, wait: float | None, max_waiters: int | None) -> Admission:
        """Wait for our turn, at most ``wait`` seconds (None: for ever). Whoever does not get it leaves."""
        until = None if wait is None else now() + wait
        turn.parker = runtime.parker()
        with self._lock:
            if max_waiters is not None and self._count_waiters() >= max_waiters:
                return "full"
            self._waiting.append(turn)  # from here on who leaves sees us
        while (admission := self.try_enter(turn)) == "busy":
            left = None if until is None else until - now()
            if left is not None and left <= 0:
                break
            await turn.parker.park(left)
        return admission

    def _count_waiters(self) -> int:
        """Those that are alive: of a closed event loop nobody would ever wake."""
        return sum(turn.parker is None or turn.parker.hears() for turn in self._waiting)

    def leave(self, turn: Turn) -> None:
        """Neither inside nor waiting any more. The next one is woken, of those whose event loop still runs."""
        with self._lock:
            self._forget(turn)
            if self._inside is turn:
                self._inside = None
            while self._inside is None and self._waiting:
                first = self._waiting[0]
                if first.parker is None or first.parker.unpark():
                    break
                self._forget(first)

    def close(self) -> None:
        """The block has ended: who is inside is without the lock, and told; who waits takes it from the store."""
        self._turn_away()
        for turn in self._turns_inside():
            turn.outlive()

    def close_if_empty(self) -> bool:
        """The lease is entered elsewhere: who waits here is a stranger to it. False: somebody is inside."""
        with self._lock:
            if self._closed or self._turns_inside():
                return False
            self._turn_away()
            return True

    def _turn_away(self) -> None:
        with self._lock:
            self._closed = True
            for turn in self._waiting.copy():
                if turn.parker is not None:
                    turn.parker.unpark()

    def _turns_inside(self) -> list[Turn]:
        return [turn for turn in self.hold.nested.copy() if turn.gate is self]

    def _forget(self, waiting: Turn) -> None:
        try:
            self._waiting.remove(waiting)
        except ValueError:
            pass  # it did not wait
