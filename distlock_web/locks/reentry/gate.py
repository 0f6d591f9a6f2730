"""The gate of a hold, through which nested blocks enter it, and the turns that they have there."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

from ...core.process import Process, check_process
from ...core.runtime import Parker, Runtime, now
from ..hold import Hold, NestedTurn
from ..scope import Scope
from .sharing import is_shared

#: What a nested block hears at the gate. ``busy``: another block is inside. ``full``: as many wait as ``max_waiters``
#: lets. ``closed``: the outer block has ended, or has lost the lock.
Admission: TypeAlias = Literal["ours", "busy", "full", "closed"]


class Turn:
    """The turn of one nested block in a hold of a block around it.

    It is the block's before it is asked for, and left as often as one likes: so a signal's exception may come between
    any two steps, and the end of the block leaves it.
    """

    __slots__ = ("_block", "_generation", "gate", "hold", "parker", "since")

    def __init__(self, gate: ReentryGate, block: Scope) -> None:
        self.hold = gate.hold
        self.gate = gate
        self.parker: Parker | None = None  #: who waits for it
        self.since = 0.0  #: by our clock, when it came
        self._generation = Process.generation
        # When the block is garbage, it will never be left by hand.
        self._block: weakref.ref[Scope] | None = weakref.ref(block, self._forgotten)

    def _forgotten(
        self, _: object, check: Callable[[], object] = check_process, process: type[Process] = Process
    ) -> None:  # bound here: at the end of the interpreter the names of modules go before their objects
        check()
        if self._generation == process.generation:  # else a thread of the parent may have had the gate's mutex
            self.leave()

    def leave(self) -> None:
        """The block is not inside of the hold any more, and does not wait for it."""
        self.hold.nested.discard(self)
        self.gate.leave(self)
        self._block = None

    def is_at(self, gate: object) -> bool:
        """Whether it is one of this gate's: another block's may lead into the same hold."""
        return self.gate is gate

    def outlive(self) -> None:
        """The block around has ended: this one is without the lock from now on, and is told."""
        reference = self._block
        if reference is not None and (block := reference()) is not None:
            block.outlive(self.hold)


class ReentryGate:
    """Lets one nested block at a time into a hold, first come, first served; into a shared one, all that come.

    Siblings are tasks or threads that inherited the same hold. If all of them re-entered, they would exclude none.
    Inside a shared hold there are only others that share it. Each block has gates of its own into its holds: who
    came in by one is inside until that block ends, though the hold may go on.

    Garbage that is collected inside of a method may leave the gate, in this very thread. So the mutex is reentrant, and
    each method is right wherever that happens. To be woken is a hint: each looks whether it may enter.
    """

    __slots__ = ("_closed", "_inside", "_lock", "_shared", "_waiting", "hold")

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self._shared = is_shared(hold)
        self._lock = threading.RLock()
        self._inside: Turn | None = None
        self._closed = False
        self._waiting: deque[Turn] = deque()

    def try_enter(self, turn: Turn) -> Admission:
        """Enter if no block is inside, and none waits in front."""
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
        """Wait for our turn, at most ``wait`` seconds (None: for ever). If it does not come, leave."""
        until = None if wait is None else now() + wait
        turn.parker = runtime.parker()
        with self._lock:
            if max_waiters is not None and self._count_waiters() >= max_waiters:
                return "full"
            self._waiting.append(turn)  # from here on a block that leaves wakes this one
        while (admission := self.try_enter(turn)) == "busy":
            left = None if until is None else until - now()
            if left is not None and left <= 0:
                break
            await turn.parker.park(left)
        return admission

    def _count_waiters(self) -> int:
        """Those that are alive: in a closed event loop none would ever wake."""
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
                    return
                self._forget(first)

    def close(self) -> None:
        """The block has ended: who is inside is without the lock, and told; who waits takes it from the store."""
        self._turn_away()
        for turn in self._turns_inside():
            turn.outlive()

    def close_if_empty(self) -> bool:
        """The lease is entered elsewhere: who waits here is a stranger to it. False: a block is inside."""
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

    def _turns_inside(self) -> list[NestedTurn]:
        return [turn for turn in self.hold.nested.copy() if turn.is_at(self)]

    def _forget(self, waiting: Turn) -> None:
        try:
            self._waiting.remove(waiting)
        except ValueError:
            pass  # it did not wait


def gate_of(scope: Scope, hold: Hold) -> ReentryGate:
    """The gate into this hold of the scope; closed if its block has ended meanwhile, or is without its lock."""
    gate = cast(ReentryGate, scope.gates.setdefault(hold.name, ReentryGate(hold)))
    if scope.over or scope.why_lost is not None:
        gate.close()
    return gate


def line_up(scope: Scope, gate: ReentryGate) -> Turn:
    """A turn in a hold of a block around this one: from here on it is left when this one ends."""
    turn = Turn(gate, scope)
    scope.turns.append(turn)
    return turn
