"""One order: callers in threads of their own, of which one runs at a time, from one stop to the next.

A caller stops before what another one could notice (:class:`Step`), and the scheduler, in the thread of the test, says
who goes on. A caller that waits, in the database or for a lock of ours, cannot be chosen, until what it waits for came.
"""

from __future__ import annotations

import contextvars
import ctypes
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from distlock_web.core.errors import ConfigurationError

T = TypeVar("T")

#: Seconds between two looks at a caller whose statement has not come back: it may wait for another caller's.
LOOK = 0.003
#: Seconds that a caller may run without a stop, or do the same again and again.
HANG = 10.0
#: Who is about to do the same for the third time polls, or tries again: another one that was stopped goes on.
AGAIN = 2
#: So often before another one begins: a loop that is no polling ends first, so that a serial order stays one.
MANY = 200
#: So often callers that poll are passed over before that counts as hanging.
PASSED_OVER = 100
#: Seconds that a database has to find a deadlock: PostgreSQL takes one.
DEADLOCK = 5.0
#: Seconds that a caller has to end when it is told to.
END = 3.0


class RaceRefused(ConfigurationError):
    """What ``race`` cannot do, and why. It is raised in the test, whatever the caller makes of it."""


class Ended(BaseException):
    """The order is given up: leave the call. No Exception, so that no view takes it for an error of its own."""


@dataclass(slots=True)
class Step:
    """What a caller does between two of its stops, as far as others can notice it."""

    text: str
    where: str = ""  #: the user's line
    table: str = ""  #: that is read or written
    writes: bool = False
    fields: frozenset[str] = frozenset()  #: the columns that it changes
    found: int | None = None  #: how many rows were read
    row_lock: str = ""  #: what would lock them
    values: list[tuple[str, object]] = field(default_factory=list)  #: of the first of them
    note: str = ""
    by_user: bool = False
    caller: int = 0


class Waiting(Protocol):
    """Where a statement runs: whether it waits there for another one, and how it is ended."""

    def waits(self, connection: Any) -> bool | None: ...

    def interrupt(self, connection: Any) -> None: ...

    def cut(self, connection: Any) -> None: ...


State = Literal["running", "ready", "waits", "ended"]


class Caller:
    """One of those who race, in a thread of its own."""

    def __init__(self, order: Order, number: int, call: Callable[[], object]) -> None:
        self.order = order
        self.number = number
        self.name = chr(ord("A") + number)
        self.state: State = "running"
        self.answer: object = None
        self.error: BaseException | None = None
        self.pending: Step | None = None  #: what it does next, when it is chosen
        self.doing: Step | None = None
        self.statement: tuple[Waiting, Any] | None = None  #: that runs now, and the connection it runs on
        self.used: dict[int, tuple[Waiting, Any]] = {}  #: its connections
        self.stuck = False  #: that statement waits for another caller's
        self.waits_for: object = None  #: a lock of ours, or a file of SQLite
        self.patient = True  #: it waits for ever
        self.gave_up = False  #: no other caller can end its waiting: its time is over
        self.refused = False  #: a lock of ours was not given: the call has said so, and has not done its work
        self.touched: set[int] = set()  #: connections to SQLite with a snapshot, which wait for nothing any more
        self.cut_short = False  #: it was told to end
        self._turn = threading.Semaphore(0)
        # No Context of the test's: what it holds, and whose request it is, would be the caller's.
        body = partial(contextvars.Context().run, self._body, call)
        self.thread = threading.Thread(target=body, name=f"race-{self.name}", daemon=True)

    def _body(self, call: Callable[[], object]) -> None:
        _here.caller = self
        try:
            self.stop(None)
            self.answer = call()
        except Ended:
            pass
        except BaseException as error:
            self.error = error
        finally:
            _here.caller = None
            with self.order.changed:
                self.state = "ended"
                self.order.changed.notify_all()

    def stop(self, step: Step | None) -> None:
        """Wait until chosen; what it does then is this."""
        if step is not None:
            step.caller = self.number
        with self.order.changed:
            if not self.order.ending:
                self.pending, self.state = step, "ready"
                self.order.changed.notify_all()
        self._sleep()

    def _sleep(self) -> None:
        if not self.order.ending:
            self._turn.acquire()
        if self.order.ending and not self.cut_short:
            self.cut_short = True  # once: what it does on its way out is not disturbed
            raise Ended

    def wait(self, what: object, step: Step, *, patient: bool) -> bool:
        """Until this is given back. False: all others wait as well, so that its time is over."""
        with self.order.changed:
            if not self.order.ending:
                self.waits_for, self.patient, self.state, self.pending = what, patient, "waits", step
                self.order.changed.notify_all()
        self._sleep()
        gave_up, self.gave_up = self.gave_up, False
        return not gave_up

    def send(self, where: Waiting, connection: Any, execute: Callable[[], T]) -> T:
        """Run a statement. If it has waited for another caller's, stop when it comes back."""
        self.use(where, connection)
        self.statement = where, connection
        try:
            return execute()
        finally:
            with self.order.changed:
                self.statement = None
                stuck, self.stuck = self.stuck, False
            if stuck:
                self.stop(Step("goes on"))

    def use(self, where: Waiting, connection: Any) -> None:
        self.used[id(connection)] = where, connection

    def choose(self) -> None:
        """From the scheduler: it is this one's turn."""
        self.state = "running"
        self.doing, self.pending = self.pending, None
        self._turn.release()

    def leave(self) -> None:
        self._turn.release()
        self.interrupt()

    def interrupt(self) -> None:
        statement = self.statement  # once: its thread sets it to None when the statement comes back
        if statement is not None and self.thread.is_alive():
            where, connection = statement
            where.interrupt(connection)


_here = threading.local()


def running() -> Caller | None:
    """The caller whose thread this is; None: it is another thread."""
    return getattr(_here, "caller", None)


@dataclass(slots=True)
class Choice:
    """Who could go on, who did, and who had gone before."""

    ready: tuple[int, ...]
    taken: int
    before: int | None

    @property
    def preempts(self) -> bool:
        """Whether a caller was stopped that could have gone on."""
        return self.is_preemption(self.taken)

    def is_preemption(self, other: int) -> bool:
        return self.before is not None and self.before in self.ready and other != self.before


class Order:
    """Runs the calls in one order: first the beginning that is given; then each as long as it can, by ``rank``."""

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        beginning: Sequence[int] = (),
        rank: Sequence[int] | None = None,
        hang: float = HANG,
    ) -> None:
        self.changed = threading.Condition()
        self.ending = False
        self.callers = [Caller(self, number, call) for number, call in enumerate(calls)]
        self.choices: list[Choice] = []
        self.steps: list[Step] = []
        self.trouble = ""  #: why it had to be ended
        self.refused: RaceRefused | None = None
        self._beginning = deque(beginning)
        self._rank = [self.callers[number] for number in rank or range(len(calls))]
        self._hang = hang
        self._done: Counter[tuple[str, str]] = Counter()  #: in the turn of the caller that was chosen last
        self._turn_began = self._began = time.monotonic()
        self._passed_over = 0

    def run(self) -> Order:
        try:
            for caller in self.callers:
                caller.thread.start()
                self._until_it_stops(caller)
            last: Caller | None = None
            while not self.trouble and any(caller.state != "ended" for caller in self.callers):
                ready = [caller for caller in self.callers if caller.state == "ready"]
                if not ready:
                    self._untangle()
                    continue
                ready = self._let_go_on(ready, last)
                if self.trouble:
                    break
                chosen = self._choose(ready, last)
                if chosen is not last:
                    self._done.clear()
                    self._turn_began = time.monotonic()
                self.choices.append(
                    Choice(tuple(each.number for each in ready), chosen.number, last.number if last else None)
                )
                last = chosen
                self._let(chosen)
                self._look_at_the_stuck()
        finally:
            self.end()
        if self.refused is not None:
            raise self.refused
        return self

    def _let(self, chosen: Caller) -> None:
        begins = chosen.pending is None
        if begins:
            chosen.choose()
            self._until_it_stops(chosen)
            # Other callers can notice what comes before a step of the user's, but not before a statement or a lock.
            if chosen.state != "ready" or chosen.pending is None or chosen.pending.by_user:
                self.steps.append(Step("begins", caller=chosen.number))
                return
        assert chosen.pending is not None
        self.steps.append(chosen.pending)
        self._done[_same(chosen.pending)] += 1
        chosen.choose()
        self._until_it_stops(chosen)

    @property
    def letters(self) -> str:
        return "".join(self.callers[choice.taken].name for choice in self.choices)

    def _choose(self, ready: list[Caller], last: Caller | None) -> Caller:
        while self._beginning:
            wanted = self.callers[self._beginning.popleft()]
            if wanted in ready:
                return wanted
        return last if last is not None and last in ready else next(each for each in self._rank if each in ready)

    def _let_go_on(self, ready: list[Caller], last: Caller | None) -> list[Caller]:
        """Without the last one, if it polls for what another one does, or tries again while that one is in its way: it
        would go on for ever, in each order that lets it."""
        if last is None or last not in ready or last.pending is None:
            return ready
        times, long = self._done[_same(last.pending)], time.monotonic() - self._turn_began > self._hang
        if times < AGAIN:
            return ready
        others = [each for each in ready if each is not last]
        if not others:
            self.trouble = self._polls(last) if long else ""
            return ready
        if not (long or times >= MANY or any(each.pending is not None for each in others)):
            return ready
        self._passed_over += 1
        if self._passed_over > PASSED_OVER and time.monotonic() - self._began > self._hang:
            self.trouble = self._polls(last)
        return others

    def _polls(self, caller: Caller) -> str:
        step = caller.pending or Step("")
        same = f"{step.text}  {step.where}"
        return f"{caller.name} has done the same again and again, for more than {self._hang:g} s: {same}"

    def give_back(self, what: object) -> None:
        """Who waits for this may ask again. Called by the caller that has it, before its next stop."""
        with self.changed:
            for caller in self.callers:
                if caller.state == "waits" and caller.waits_for == what:
                    caller.state = "ready"

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _until_it_stops(self, caller: Caller) -> None:
        """Until it has come to a stop, has ended, or waits in the database for another one."""
        until = time.monotonic() + self._hang
        while not self._stops(caller, LOOK):
            if self._is_stuck(caller):
                return
            if time.monotonic() > until:
                self.trouble = f"{caller.name} has not come back for {self._hang:g} s:\n{_stack(caller.thread)}"
                return

    def _stops(self, caller: Caller, patience: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: caller.state != "running", patience)

    def _is_stuck(self, caller: Caller) -> bool:
        statement = caller.statement
        if statement is None or not statement[0].waits(statement[1]):
            return False
        with self.changed:  # it may have come back since
            if caller.state != "running" or caller.statement is not statement:
                return False
            if not caller.stuck and caller.doing is not None:
                caller.doing.note = "waits"
            caller.stuck = True
            return True

    def _look_at_the_stuck(self) -> None:
        """What the last step has set free comes to its stop before anybody is chosen: so the order stays the same."""
        for caller in self.callers:
            if caller.stuck and caller.state == "running":
                self._until_it_stops(caller)

    def _untangle(self) -> None:
        """All wait. The database finds its deadlock, or one's time is over; else they would wait for ever."""
        stuck = [caller for caller in self.callers if caller.state == "running"]
        waiting = [caller for caller in self.callers if caller.state == "waits" and not caller.patient]
        patience = 0.1 if waiting else DEADLOCK
        if stuck:
            with self.changed:
                if self.changed.wait_for(lambda: any(each.state != "running" for each in stuck), patience):
                    return
        if not waiting:
            names = " and ".join(caller.name for caller in self.callers if caller.state != "ended")
            self.trouble = f"{names} wait for each other, or for somebody else, for ever."
            return
        waiting[0].gave_up = True
        waiting[0].state = "ready"

    # The end ----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Every thread ends: at its next stop, or by an exception that is raised in it."""
        with self.changed:
            self.ending = True
        left = [caller for caller in self.callers if caller.thread.ident is not None and caller.thread.is_alive()]
        for caller in left:
            caller.leave()
        until = time.monotonic() + END
        for caller in left:
            caller.thread.join(0.2)
            if caller.thread.is_alive() and caller.thread.ident is not None:  # it computes, or it sleeps
                caller.cut_short = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(caller.thread.ident), ctypes.py_object(Ended))
            caller.thread.join(max(0.0, until - time.monotonic()))
            if caller.thread.is_alive():
                self.trouble += f"\n{caller.name} could not be ended: its thread stays, without its connections."
                for where, connection in caller.used.values():
                    where.cut(connection)


def _same(step: Step) -> tuple[str, str]:
    return step.text, step.where


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""
