"""A block of code that runs under one or more locks: what it holds, and how it ends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal, NamedTuple, TypeAlias

from ..core.errors import NotHeld
from ..core.registry import Store
from ..core.runtime import Process, Runtime, check_process
from . import open_transactions
from .hold import Hold, State
from .reentry import ReentryGate
from .runner import Runner

#: What happens when the locks are lost: raise at the end of the block, log, cancel the task, or call with the scope.
WhenLost: TypeAlias = "Literal['raise', 'warn', 'cancel'] | Callable[[Scope], object]"


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
    place: str = ""  #: the line that takes it, ``module:line``, where no function is locked


class Scope:
    """What the engine fills with holds and ends; a caller sees it through a :class:`~distlock_web.locks.lease.Lease`.

    Only its leases and its running block keep it alive: everything else refers to it weakly.
    """

    __slots__ = (
        "__weakref__", "_cancelled", "_gates", "_generation", "_on_end", "_open", "_resume_renewal", "_runner",
        "_stop_watching", "_turns", "_warned", "acquired", "locked", "opener", "outlives_task", "reentered", "runtime",
        "spec", "waited",
    )  # fmt: skip

    def __init__(self, spec: Spec, runtime: Runtime, opener: object = None, outlives_task: bool = False) -> None:
        self.spec = spec
        self.runtime = runtime
        self.opener = opener  #: the object whose ``with`` block this is; None: it is not one's
        self.outlives_task = outlives_task  #: the task that runs now ends with the acquisition
        #: False: the store did not answer and ``on_backend_error="open"`` let the call through without a lock.
        self.locked = True
        self.waited = 0.0  #: seconds in the queue for the name that was asked for last
        self.acquired: list[Hold] = []  #: by this block, and released at its end
        self.reentered: list[Hold] = []  #: of a block around it
        self._turns: list[tuple[Hold, ReentryGate]] = []  # in those, not given up yet
        self._gates: dict[str, ReentryGate] = {}
        self._generation = Process.generation
        self._open = [True]  # emptied by whoever ends the block: list.pop is atomic
        self._on_end: Callable[[], None] | None = None
        self._stop_watching: Callable[[], None] | None = None
        self._resume_renewal: Callable[[], None] | None = None
        self._warned = False
        self._runner: Runner | None = None
        self._cancelled: asyncio.Task[Any] | None = None

    # What it holds ------------------------------------------------------------------------------------------------

    def add(self, hold: Hold) -> None:
        self.acquired.append(hold)

    def reenter(self, hold: Hold, gate: ReentryGate) -> None:
        """It is our turn in a hold of a block around this one."""
        turns, generation = self._turns, self._generation

        def forgotten() -> None:
            check_process()
            if generation == Process.generation:  # else at the fork a thread that is not here may have had its mutex
                _leave(turns)

        gate.leave_with(self, forgotten)
        turns.append((hold, gate))
        hold.enter()
        self.reentered.append(hold)

    def let_through(self) -> None:
        """The block runs without its locks."""
        self.locked = False

    def keep_nothing(self) -> None:
        """The block has not done its work: its locks are free as soon as they are released."""
        self.spec = self.spec._replace(hold_at_least=0.0)

    def note_waited(self, seconds: float) -> None:
        """So long it stood in the queue for the name that is asked for now."""
        self.waited = seconds

    def use_runtime(self, runtime: Runtime) -> None:
        """The block ends in a thread or in an event loop, wherever it began."""
        self.runtime = runtime

    @property
    def holds(self) -> list[Hold]:
        return [*self.acquired, *self.reentered] if self.reentered else self.acquired

    def raise_if_lost(self) -> None:
        """``LeaseLost`` for the first hold that is not surely ours any more."""
        for hold in self.holds:
            hold.raise_if_lost()

    def check_usable(self) -> None:
        """``NotHeld`` if the block is over; ``LeaseLost`` if a lock is lost, also to a fork, which the parent kept."""
        if not self._open:
            raise self.over_error()
        self.raise_if_lost()
        if not self.alive:  # let through without a lock, and forked
            raise self.over_error()

    def lost_hold(self) -> Hold | None:
        for hold in self.holds:
            if hold.state == "lost":
                return hold
        return None

    def orphaned(self) -> Hold | None:
        """A hold of a block around this one that has ended since."""
        for hold in self.reentered:
            if hold.state in ("releasing", "released"):
                return hold
        return None

    @property
    def alive(self) -> bool:
        """Whether the block is still running, in the process that took the locks."""
        return bool(self._open) and self._generation == Process.generation

    @property
    def state(self) -> State:
        """``held``, ``unsure`` (the store is not answering), ``lost``, ``releasing`` or ``released``."""
        states = {hold.state for hold in self.holds}
        if "lost" in states:
            return "lost"
        if not self._open:
            return "releasing" if "releasing" in states else "released"
        if states & {"releasing", "released"}:
            return "lost"  # a nested block whose outer block has ended
        return "unsure" if "unsure" in states else "held"

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed, on the safe side of the store's clock."""
        return min((hold.remaining for hold in self.holds), default=0.0)

    # How it ends --------------------------------------------------------------------------------------------------

    def close_once(self) -> bool:
        """Mark the block ended. True for exactly one caller, of all threads: release happens once."""
        check_process()
        if self._generation != Process.generation:
            return False
        try:
            self._open.pop()
            first = True
        except IndexError:
            first = False  # but it may have been interrupted before it closed the gates
        # Marked, then the gates are read; gate() adds its gate, then reads the mark: no gate stays open.
        if self._gates:
            for gate in self._gates.copy().values():
                gate.close()
        return first

    def over_error(self) -> NotHeld:
        """What to raise when something is asked of the scope after its end."""
        return NotHeld(f"The lease of {names_of(self)} is over.", name=names_of(self))

    def gate(self, hold: Hold) -> ReentryGate:
        """The gate into this hold; closed if the block has ended meanwhile."""
        gate = self._gates.setdefault(hold.name, ReentryGate())
        if not self._open:
            gate.close()
        return gate

    def leave_gates(self) -> None:
        """Leave the holds of the blocks around: what happens to them from now on is those blocks' business."""
        if self._on_end is not None:
            for hold, _ in list(self._turns):
                hold.forget_callback(self._on_end)
        _leave(self._turns)

    def watch(self, stop: Callable[[], None], resume: Callable[[], None]) -> None:
        """The watchdog looks after its holds now, until ``stop`` is called; ``resume`` makes it renew them again."""
        self.stop_watching()
        self._stop_watching, self._resume_renewal = stop, resume

    def stop_watching(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching()

    def warn_once(self) -> None:
        """Warn, once, if the running code is inside a transaction that ends after this block."""
        if open_transactions.lookups and self.acquired and not self._warned:
            self._warned = open_transactions.warn_if_open(self.spec.function, self.spec.code)

    # Who runs it --------------------------------------------------------------------------------------------------

    def bind_runner(self) -> None:
        """The running task or thread is the one in the block: it is renewed while that lives, and a loss cancels it."""
        if self._runner is None or not self._runner.is_current():
            self._runner = Runner()
            if self._resume_renewal is not None:  # the one before may have ended, and its renewal with it
                self._resume_renewal()
        if self.state == "lost":  # while the one before was to be told
            self._cancel()

    def abandoned(self) -> bool:
        """Whether the one in the block has ended without releasing it, and nobody has entered it for a lease since.

        So long a lease may be on its way: returned by a task, given to a thread that has been started.
        """
        return self._runner is not None and self._runner.ended_for() >= self.spec.expire

    # Who is told of a loss ----------------------------------------------------------------------------------------

    def notify_when_lost(self, callback: Callable[[Scope], object]) -> None:
        """Call back once when the locks are lost: from the thread that notices."""
        myself = weakref.ref(self)  # the holds must not keep a scope alive that nobody has any more
        callbacks = iter((callback,))  # each of several locks tells of its loss, perhaps in another thread

        def changed() -> None:
            scope = myself()
            if scope is not None and scope.state == "lost":
                for call in callbacks:
                    call(scope)

        self._on_end = changed
        for hold in self.holds:
            hold.on_end(changed)

    def cancel_when_lost(self) -> None:
        """Cancel the task in the block when the locks are lost (``on_lost="cancel"``)."""
        self.notify_when_lost(Scope._cancel_soon)

    def _task(self) -> asyncio.Task[Any] | None:
        return None if self._runner is None else self._runner.task

    def _cancel_soon(self) -> None:
        if (task := self._task()) is not None and not (loop := task.get_loop()).is_closed():
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.spec.on_lost == "cancel" and self.alive and self._cancelled is None and (task := self._task()):
            self._cancelled = task if task.cancel("the lock of this task is lost") else None

    def take_back_cancellation(self) -> bool:
        """Whether the cancellation that ended the block was only ours: ``LeaseLost`` is said in its place."""
        return self._cancelled is not None and self._cancelled.uncancel() == 0


def _leave(turns: list[tuple[Hold, ReentryGate]]) -> None:
    """Each once, whoever comes first: its owner, or garbage collection."""
    while turns:
        try:
            hold, gate = turns.pop()
        except IndexError:
            return
        hold.leave()
        gate.leave()


def names_of(scope: Scope) -> str:
    """The scope's locks, for messages."""
    return ", ".join(repr(name) for name in scope.spec.names)
