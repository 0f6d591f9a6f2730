"""A block of code that runs under one or more locks, and the chain of such blocks that the running code is inside of.

The chain is a context variable with the live blocks of the call chain, outermost first (law 2). A block is marked
ended when it ends, wherever that happens; the variable is never reset across contexts.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ..core.runtime import Process, Runtime
from .hold import Hold, ReentryGate, State

if TYPE_CHECKING:
    from ..core.registry import Store
    from .lease import Lease

#: What happens when a lease is lost: raise at the end of the block, log, cancel the task, or call with the lease.
OnLost: TypeAlias = "Literal['raise', 'warn', 'cancel'] | Callable[[Lease], object]"


class Spec(NamedTuple):
    """What was asked for: checked values, the store's defaults filled in. All times are seconds."""

    store: Store
    names: tuple[str, ...]  #: in the one order in which everybody takes them
    expire: float
    wait: float | None  #: None: for ever
    renew: bool = False
    renew_for: float | None = None
    on_lost: OnLost = "raise"
    hold_at_least: float = 0.0
    what: str = ""  #: the function, for people
    code: CodeType | None = None  #: the function's, for a warning that points to it


class Scope:
    """What the engine fills with holds and ends; :class:`~distlock_web.locks.lease.Lease` is its public face."""

    __slots__ = (
        "__weakref__", "_cancelled_task", "_ended", "_generation", "_seats", "_task", "_tell", "acquired", "nested",
        "own", "runtime", "spec", "stop_renewing", "warned",
    )  # fmt: skip

    def __init__(self, spec: Spec, runtime: Runtime) -> None:
        self.spec = spec
        #: False: the store did not answer and ``on_backend_error="open"`` let the call through without a lock.
        self.acquired = True
        self.runtime = runtime
        self.own: list[Hold] = []  #: taken by this block, and given back at its end
        self.nested: list[tuple[Hold, ReentryGate]] = []  #: lent by a block around it
        self.stop_renewing: Callable[[], None] | None = None
        self._seats: dict[str, ReentryGate] = {}
        self.warned = False  #: of a transaction around it
        self._tell: Callable[[], None] | None = None
        self._ended = False
        self._generation = Process.generation
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_task = False

    @property
    def holds(self) -> list[Hold]:
        return [*self.own, *[hold for hold, _ in self.nested]] if self.nested else self.own

    def lost_hold(self) -> Hold | None:
        for hold in self.holds:
            if hold.state == "lost":
                return hold
        return None

    def orphaned(self) -> Hold | None:
        """A hold that was lent by a block that has ended since."""
        for hold, _ in self.nested:
            if hold.state in ("releasing", "released"):
                return hold
        return None

    @property
    def alive(self) -> bool:
        """Whether the block is still running, in the process that took the locks."""
        return not self._ended and self._generation == Process.generation

    @property
    def state(self) -> State:
        """``held``, ``unsure`` (the store is not answering), ``lost``, ``releasing`` or ``released``."""
        states = {hold.state for hold in self.holds}
        if "lost" in states:
            return "lost"
        if self._ended:
            return "releasing" if "releasing" in states else "released"
        if states & {"releasing", "released"}:
            return "lost"  # a nested block whose outer block has ended: what it was lent is gone
        return "unsure" if "unsure" in states else "held"

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed, on the safe side of the store's clock."""
        return min((hold.remaining for hold in self.holds), default=0.0)

    def enter(self) -> None:
        """From now on the running code is inside this block."""
        _chain.set((*_references(active_scopes()), weakref.ref(self)))

    def leave(self) -> None:
        """The running code is no longer inside of this block, which goes on all the same (a response carries it)."""
        _chain.set(_references(block for block in active_scopes() if block is not self))

    def close_once(self) -> bool:
        """Mark the block ended. True for exactly one caller: release happens once."""
        with _ending:
            if not self.alive:
                return False
            self._ended = True
            seats = list(self._seats.values())
        for seat in seats:
            seat.close()
        if _chain.get():
            _chain.set(_references(active_scopes()))
        return True

    def seat(self, hold: Hold) -> ReentryGate:
        """The seat for a nested hold of this name; closed if the block has ended meanwhile."""
        with _ending:
            seat = self._seats.setdefault(hold.name, ReentryGate())
            if self._ended:
                seat.close()
            return seat

    def notify_when_lost(self, callback: Callable[[Scope], object]) -> None:
        """Call back once when the locks are lost: from the thread that notices."""
        myself = weakref.ref(self)  # the holds must not keep a lease alive that nobody has any more

        def changed() -> None:
            block = myself()
            if block is not None and block.state == "lost":
                callback(block)

        self._tell = changed
        for hold in self.holds:
            hold.on_change(changed)

    def stop_notifying(self, hold: Hold) -> None:
        """A nested block ends: what happens to the hold from now on is the outer block's business."""
        if self._tell is not None:
            hold.forget_callback(self._tell)

    def cancel_when_lost(self) -> None:
        """Cancel the running task when the locks are lost (``on_lost="cancel"``)."""
        self._task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def tell(block: Scope) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(block._cancel)

        self.notify_when_lost(tell)

    def _cancel(self) -> None:
        if self._task is not None and self.alive and not self._cancelled_task:
            self._cancelled_task = True
            self._task.cancel("the lock of this task is lost")

    def take_back_cancellation(self) -> bool:
        """Whether the cancellation that ended the block was only ours: ``LeaseLost`` is said in its place."""
        return self._cancelled_task and self._task is not None and self._task.uncancel() == 0


# Weak, for a lease that nobody has any more is nobody's: left to its time (``if lock(...).try_acquire(): ...``), it
# must not make the next job of the same thread a nested one. A block that runs is held by its frame.
Chain: TypeAlias = "tuple[weakref.ref[Scope], ...]"
_chain: ContextVar[Chain] = ContextVar("distlock_chain", default=())
_ending = threading.Lock()


def _forked() -> None:
    global _ending
    _ending = threading.Lock()  # a thread that stayed in the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def active_scopes() -> tuple[Scope, ...]:
    """The blocks that the running code is inside of, outermost first."""
    chain = _chain.get()
    return tuple([block for ref in chain if (block := ref()) is not None and block.alive]) if chain else ()


def _references(blocks: Iterable[Scope]) -> Chain:
    return tuple([weakref.ref(block) for block in blocks])


def find_enclosing(store: Store, name: str) -> tuple[Scope, Hold] | None:
    """The find_enclosing live block of the call chain that holds this name, and its hold."""
    if not _chain.get():
        return None
    for block in reversed(active_scopes()):
        for hold in block.holds:
            if hold.claim.name == name and hold.store is store:
                return block, hold
    return None


def swap_scopes(chain: Chain = ()) -> Chain:
    """Go inside of these blocks instead of those that the running code was inside of, which are returned.

    A request begins inside of none: a lease that an earlier one left behind in this thread is not its own.
    """
    before = _chain.get()
    if before is not chain:
        _chain.set(chain)
    return before
