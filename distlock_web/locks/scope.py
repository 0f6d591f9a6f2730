"""A block of code that runs under one or more locks: what it holds, and how it ends."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from ..core.backend import Claim, Granted
from ..core.errors import LeaseLost, LossReason, NotHeld
from ..core.process import Process, check_process
from ..core.registry import Store
from ..core.request_id import HolderInfo
from ..core.runtime import TASKS, Runtime, now
from . import events
from .cancelling import Cancelling
from .hold import Hold, NestedTurn, State
from .hooks import Asked

#: What happens when the locks are lost: raise at the end of the block, log, cancel the task, or call with the scope.
WhenLost: TypeAlias = "Literal['raise', 'warn', 'cancel'] | Callable[[Scope], object]"

#: The object whose ``with`` block runs, and where it stands, as ``chain.place_of`` says it.
Opener: TypeAlias = "tuple[object, FrameType | str]"


class Spec(NamedTuple):
    """What was asked for: checked values, the store's defaults filled in. All times are seconds."""

    store: Store
    names: tuple[str, ...]  #: in the one order in which everybody takes them
    expire: float
    wait: float | None  #: None: for ever
    renew: bool = False
    renew_for: float | None = None
    on_lost: WhenLost = "raise"
    hold_at_least: float = 0.0
    function: str = ""  #: what is locked, for people
    code: CodeType | None = None  #: the function's, for a warning that points to it
    template: str = ""  #: what the names are made of, for people: a decorator's key, or the line of ``lock(...)``
    prefix: str = ""  #: what its names begin with
    max_waiters: int | None = None  #: how many may queue; None: as many as come
    limit: int = 1  #: how many may hold each of them; 1: we alone


class Gate(Protocol):
    """Into a hold of this block, for blocks inside of it: as ``reentry/gate.py`` has it."""

    def close(self) -> None: ...


class Scope:
    """What the engine fills with holds and ends; a caller sees it through a :class:`~distlock_web.locks.lease.Lease`.

    Only its leases and its running block keep it alive: everything else refers to it weakly.
    """

    __slots__ = (
        "__weakref__", "_callbacks", "_generation", "_open", "_unwatch",
        "acquired", "asked", "cancelling", "entry", "gates", "has_waited", "holds", "in_block", "keep_for", "locked",
        "opener", "record", "reentered", "runtime", "settle", "spec", "turns", "waited", "waits_until", "warned",
        "why_lost",
    )  # fmt: skip

    def __init__(self, spec: Spec, runtime: Runtime, opener: Opener | None = None, in_block: bool = True) -> None:
        self.spec = spec
        self.runtime = runtime  #: of the thread or task that uses it now, and ends it
        self.opener = opener  #: None: it is no ``with lock(...):``, or that has ended
        self.in_block = in_block  #: False: a lease that was taken by hand, and that no ``with`` has entered yet
        #: By which ``with`` has entered such a lease: inside of it is who has this in his chain. None: who has any.
        self.entry: weakref.ref[Scope] | None = None
        self.locked = True  #: False: ``on_backend_error="open"`` let the call through without a lock
        self.asked: Asked | None = None  #: of ``once``: whose the record is
        self.record: str | None = None  #: of ``once``: what its release leaves in the store
        self.keep_for = spec.hold_at_least  #: seconds from its acquisition on that a success keeps it taken
        self.settle: Callable[[Any], bool] | None = None  #: of ``until="commit"``: before it is judged
        self.warned = False  #: of the transaction around it; or it is not to warn
        self.waits_until: float | None = None  #: by our clock, for all of its names; None: ``spec.wait`` says it
        self.has_waited = False  #: for one of its names
        self.waited = 0.0  #: seconds in the queue for the name that was asked for last
        self.holds: list[Hold] = []  #: acquired and re-entered
        self.acquired: list[Hold] = []  #: by this block, and released at its end
        self.reentered: list[NestedTurn] = []  #: in holds of the blocks around it
        self.turns: list[NestedTurn] = []  #: those, and what is waited for
        self.gates: dict[str, Gate] = {}  #: into its own holds, by name
        #: Makes the ``LeaseLost`` of a scope that is without its lock, though none that it took is lost: the block
        #: around has ended, or had lost the lock when this one left it, or a hand-over has failed. None: it has it.
        self.why_lost: Callable[..., LeaseLost] | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._generation = Process.generation
        self._open = [True]  # emptied by what ends the block: list.pop is atomic
        self._unwatch: Callable[[], None] | None = None
        self.cancelling: Cancelling | None = None  #: of ``on_lost="cancel"``

    # What it holds ------------------------------------------------------------------------------------------------

    def add(self, claim: Claim, granted: Granted) -> Hold:
        """The store has granted this: it is released with the scope."""
        hold = Hold(self.spec.store, claim, granted, self.spec.template, self.waited)
        self.holds.append(hold)
        self.acquired.append(hold)
        return hold

    def raise_if_lost(self) -> None:
        """``LeaseLost`` for the first hold that is not surely ours any more: none is, when the block has ended."""
        for hold in self.holds:
            if not (self._open and hold.check()):
                raise hold.lost_error()
        if self.why_lost is not None:
            raise self.why_lost()

    def check_usable(self) -> None:
        """``NotHeld`` if the block is over; ``LeaseLost`` if a lock is lost, also to a fork, which the parent kept."""
        if not self._open:
            raise self.over_error()
        self.raise_if_lost()
        if not self.alive:  # let through without a lock, and forked
            raise self.over_error()

    def outlive(self, hold: Hold) -> None:
        """The block around it has ended, in whose hold it was: it holds nothing any more, nor does what is inside."""
        if self._open:
            self.without(hold, "ended")

    def without(self, hold: Hold, reason: LossReason) -> None:
        """It has this hold no more: tell who listens, and those inside."""
        self.why_lost = self.why_lost or partial(hold.lost_error, otherwise=reason)
        if self._unwatch is not None:
            self._unwatch()
        self._close_gates()
        for callback in self._callbacks.copy():
            callback()

    @property
    def alive(self) -> bool:
        """Whether the block is still running, in the process that took the locks."""
        return bool(self._open) and self._generation == Process.generation

    @property
    def over(self) -> bool:
        """Whether the block has ended. In a copy of the process it is as it was at the fork."""
        return not self._open

    @property
    def state(self) -> State:
        """``held``, ``unsure`` (the store is not answering), ``lost``, ``releasing`` or ``released``."""
        # What becomes of a hold that it was inside of is not its business any more, when it has left that.
        states = {hold.state for hold in (self.holds if self._open or self.turns else self.acquired)}
        if "lost" in states or self.why_lost is not None:
            return "lost"
        if not self._open:
            return "releasing" if "releasing" in states else "released"
        return "unsure" if "unsure" in states else "held"

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed, on the safe side of the store's clock."""
        if self.why_lost is not None or not self._open:
            return 0.0
        return min((hold.remaining for hold in self.holds), default=0.0)

    @property
    def record_is_missing(self) -> bool:
        """Of ``once``, where its release has failed: it leaves a record, and has written none with the work."""
        return self.record is not None and not any(hold.recorded for hold in self.acquired)

    def wait_left(self) -> float | None:
        """Seconds that the caller wants to wait still; None: for ever."""
        return self.spec.wait if self.waits_until is None else max(0.0, self.waits_until - now())

    # How it ends --------------------------------------------------------------------------------------------------

    def close(self, runtime: Runtime) -> bool:
        """Mark the block ended, in this runtime, wherever it began. True for exactly one caller, of all threads."""
        if os.getpid() != Process.pid:
            check_process()
        if self._generation != Process.generation:
            return False
        try:
            self._open.pop()
            first = True
            self.runtime = runtime
        except IndexError:
            first = False  # but it may have been interrupted before it closed the gates
        if self.gates:
            self._close_gates()
        return first

    def reopen(self) -> None:
        """It was to be handed over, and that has failed: its block, which goes on, is told at its end."""
        self._open.append(True)

    def _close_gates(self) -> None:
        # Marked, then the gates are read; gate_of() adds its gate, then reads the mark: no gate stays open.
        for gate in self.gates.copy().values():
            gate.close()

    def over_error(self) -> NotHeld:
        """What to raise when something is asked of the scope after its end."""
        return NotHeld(f"The lease of {names_of(self)} is over.", name=", ".join(self.spec.names))

    def keep_taken(self) -> None:
        """It has succeeded: a hold of a block around it, in which it was, stays taken after its release."""
        if self.why_lost is None:
            for turn in self.reentered:
                turn.hold.keep_until = max(turn.hold.keep_until, turn.since + self.keep_for)

    def let_go(self) -> None:
        """It is renewed no more, and leaves the holds of the blocks around: those are those blocks' business."""
        if self._unwatch is not None:
            self._unwatch()
        if self.turns:
            self._leave_turns()

    def _leave_turns(self) -> None:
        for hold in (turn.hold for turn in self.reentered):
            for callback in self._callbacks.copy():
                hold.forget_callback(callback)  # if its loss is due it is told of that first
            if hold.state == "lost":
                self.why_lost = self.why_lost or hold.lost_error
        if self.why_lost is not None or not self.acquired:  # else the end of those calls back, which may be a loss
            for callback in self._callbacks.copy():
                callback()
        for turn in self.turns.copy():
            turn.leave()
        self.turns.clear()

    def watch(self, stop: Callable[[], None]) -> None:
        """The watchdog looks after its holds now, until ``stop`` is called."""
        if self._unwatch is not None:
            self._unwatch()
        self._unwatch = stop

    # When it is lost ----------------------------------------------------------------------------------------------

    def notify_when_lost(self, callback: Callable[[Scope], object]) -> None:
        """Call back once when the locks are lost: from the thread that notices."""
        myself = weakref.ref(self)  # the holds must not keep a scope alive that no code has any more
        callbacks = iter((callback,))  # each of several locks tells of its loss, perhaps in another thread

        def changed() -> None:
            scope = myself()
            if scope is not None and scope.state == "lost":
                for call in callbacks:
                    call(scope)

        self.on_end(changed)

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call back, from any thread, once one of its locks is lost or released, or not its own any more."""
        self._callbacks.append(callback)
        for hold in self.holds:
            hold.on_end(callback)
        if self.why_lost is not None:
            callback()

    def forget_callback(self, callback: Callable[[], object]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)
        for hold in self.holds:
            hold.forget_callback(callback)

    def cancel_when_lost(self) -> None:
        """Cancel the task in the block when the locks are lost (``on_lost="cancel"``)."""
        self.cancelling = Cancelling(self)
        self.notify_when_lost(self.cancelling.cancel_soon)

    # For people ---------------------------------------------------------------------------------------------------

    def claimant(self) -> str:
        """Who asks: what a store keeps beside the lock."""
        spec = self.spec
        return HolderInfo.current(spec.function or spec.template, spec.expire, self.runtime is TASKS, spec.renew)

    def log_fields(self, event: str, **known: object) -> dict[str, object]:
        """``extra=`` for a log record about all locks of the block."""
        spec = self.spec
        known["function"] = spec.function or spec.template
        return events.log_fields(event, spec.store.alias, ", ".join(spec.names), spec.template, **known)


def names_of(scope: Scope) -> str:
    """The scope's locks, for messages."""
    return ", ".join(repr(name) for name in scope.spec.names)
