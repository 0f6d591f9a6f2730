"""A world in one process: time, machines, processes and their threads, all in the hand of one seed.

A thread of the simulated program is a greenlet. It runs until it blocks (sleeps, waits for a lock or for data) or until
the scheduler takes the processor from it, which may happen wherever it looks at a clock or asks for a lock. Then the
seed says who runs next. Time is a number that grows while they run, and jumps when all of them sleep.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

#: Seconds that a turn of a thread takes, at most.
TURN = 0.000_02
#: Seconds that it takes to look at a clock.
LOOK = 0.000_000_2
#: How often a thread that looks at a clock loses the processor.
PREEMPTED = 0.03
#: 2023, in seconds since the epoch: what the clocks on the walls show when a world begins, more or less.
EPOCH = 1_700_000_000.0


class Machine:
    """Its clocks: each machine's run at a rate of their own, and begin somewhere; the one on the wall may be set."""

    def __init__(self, world: World, name: str, drift: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.rate = 1.0 + world.random.uniform(-drift, drift)
        self._begin = world.random.uniform(1_000.0, 100_000.0)
        self.wall_ahead = EPOCH + world.random.uniform(-0.5, 0.5)

    def boottime(self) -> float:
        return self._begin + self.world.time * self.rate

    def wall(self) -> float:
        return self.wall_ahead + self.world.time * self.rate

    def true_time(self, boottime: float) -> float:
        """The world's time when this machine's clock shows ``boottime``."""
        return (boottime - self._begin) / self.rate


class Timer:
    __slots__ = ("action", "args")

    def __init__(self, action: Callable[..., object] | None, args: tuple[Any, ...]) -> None:
        self.action = action
        self.args = args

    def cancel(self) -> None:
        self.action = None
        self.args = ()


class Process:
    """A process of the simulated program: its threads, where it runs, and what stops it."""

    def __init__(self, world: World, machine: Machine, name: str) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.pid = next(world.numbers)
        self.dead = False
        self.stopped_until = 0.0
        self.threads: list[Thread] = []
        self.program: Any = None

    def spawn(self, target: Callable[..., object], *args: Any, name: str = "main") -> Thread:
        thread = Thread(self, target, args, name)
        thread.start()
        return thread

    def kill(self) -> None:
        """At once, as by SIGKILL: none of its threads runs any more, and nothing of it is cleaned up."""
        self.dead = True

    def fork(self, thread: Thread) -> Process:
        """This thread goes on in a copy, with all of the state. The first one is stopped for ever."""
        copy = self.world.process(self.machine, self.name + "'")
        copy.program, self.dead = self.program, True
        self.threads.remove(thread)
        copy.threads.append(thread)
        thread.process = copy
        return copy

    @contextmanager
    def looks(self) -> Iterator[None]:
        """What is looked at inside this process sees, whoever's thread runs: by its clock, under its pid, at once."""
        world = self.world
        before = world.thread, world.still
        world.thread, world.still = self.threads[0], True
        try:
            yield
        finally:
            world.thread, world.still = before

    def stop(self, seconds: float) -> None:
        """As by SIGSTOP, and SIGCONT after so many seconds."""
        self.stopped_until = max(self.stopped_until, self.world.time + seconds)


class Thread:
    """What the simulated program gets for ``threading.Thread``."""

    def __init__(self, process: Process, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        self.process = process
        self.world = process.world
        self.name = name
        self.daemon = True
        self.ident: int | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopped_until = 0.0
        self.asleep = False  #: until somebody wakes it, or its time is over
        self.woken = False
        self.pending: BaseException | None = None  #: raised in it where it goes on
        self.error: BaseException | None = None
        self._ended = False
        self._joining: list[Thread] = []
        self._target, self._args = target, args
        self.greenlet: greenlet = greenlet(self._run, self.world.hub)

    def start(self) -> None:
        if self.world.over or self.process.dead:
            return
        self.ident = next(self.world.numbers)
        self.process.threads.append(self)
        self.world.ready.append(self)
        self.world.preempt(always=True)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended and not self.process.dead

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._joining.append(self.world.here())
            self.world.sleep(timeout)

    def interrupt(self, error: BaseException) -> None:
        """Raise this in it, as the handler of a signal does, where it is now."""
        if self.is_alive() and self.pending is None:
            self.pending = error
            self.world.wake(self)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
            if not self.world.over:
                self.world.crashes.append((self, error))
        finally:
            self._ended = True
            self._target, self._args = _nothing, ()
            for thread in self._joining:
                self.world.wake(thread)


def _nothing() -> None:
    """What a thread that has ended has to do."""


class World:
    """Everything of one seed. ``run`` makes time pass."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = itertools.count(1000)
        self.time = 0.0
        self.hub = getcurrent()
        self.ready: list[Thread] = []
        self.thread: Thread | None = None  #: who runs; None: the world itself
        self.processes: list[Process] = []
        self.crashes: list[tuple[Thread, BaseException]] = []  #: threads that ended by an exception
        self.wrong: list[str] = []  #: what a process must not do
        self.turns = 0
        self.digest = 0  #: of all that was decided: two runs with the same seed have the same
        self.over = False
        self.still = False  #: nobody else runs: all of it is looked at
        self.network: Any = None
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    # For what happens in it ---------------------------------------------------------------------------------------

    def process(self, machine: Machine, name: str) -> Process:
        process = Process(self, machine, name)
        self.processes.append(process)
        return process

    def here(self) -> Thread:
        assert self.thread is not None, "the world itself may not block"
        return self.thread

    def moment(self) -> float:
        """Now; no two moments are the same."""
        self.time += LOOK
        return self.time

    def at(self, moment: float, action: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(action, args)
        heapq.heappush(self._timers, (moment, next(self._order), timer))
        return timer

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> Timer:
        return self.at(self.time + seconds, action, *args)

    def wake(self, thread: Thread) -> None:
        """Whoever sleeps goes on; who does not sleep is not concerned."""
        if thread.asleep:
            thread.asleep, thread.woken = False, True
            self.ready.append(thread)

    def sleep(self, seconds: float | None) -> bool:
        """The running thread sleeps until it is woken (True), or for so many seconds of its machine's clock."""
        thread = self.here()
        if self.over:
            raise GreenletExit
        thread.woken = False
        timer = None
        if seconds is not None:
            timer = self.after(max(0.0, seconds) / thread.process.machine.rate, self._time_is_over, thread)
        thread.asleep = True
        self._switch(thread)
        if timer is not None:
            timer.cancel()
        return thread.woken

    def _time_is_over(self, thread: Thread) -> None:
        if thread.asleep:
            thread.asleep = False
            self.ready.append(thread)

    def preempt(self, always: bool = False) -> None:
        """Others may run before the running thread goes on."""
        thread = self.thread
        if thread is not None and not self.over and not self.still and (always or self.random.random() < PREEMPTED):
            self.ready.append(thread)
            self._switch(thread)

    def _switch(self, thread: Thread) -> None:
        self.hub.switch()
        if self.over:
            raise GreenletExit
        if thread.pending is not None:
            error, thread.pending = thread.pending, None
            raise error

    # For whoever made it ------------------------------------------------------------------------------------------

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let it go on until this time, or until it is ``done``."""
        ready, timers, random = self.ready, self._timers, self.random.random
        loop: asyncio.AbstractEventLoop | None = None
        while self.time < until and not done():
            while timers and timers[0][0] <= self.time:
                timer = heapq.heappop(timers)[2]
                if timer.action is not None:
                    timer.action(*timer.args)
            if ready:
                index = int(random() * len(ready))
                thread, ready[index] = ready[index], ready[-1]
                del ready[-1]
                if self._may_run(thread):
                    if thread.loop is not loop:
                        loop = thread.loop
                        asyncio._set_running_loop(loop)
                    self.turns += 1
                    self.digest = hash((self.digest, thread.ident, int(self.time * 1e6)))
                    self.thread = thread
                    thread.greenlet.switch()
                    self.thread = None
                    loop = asyncio._get_running_loop()  # a thread begins with its loop, or ends with it
                self.time += random() * TURN
            elif timers:
                self.time = max(self.time, min(timers[0][0], until))
            else:  # nothing can happen any more
                self.time = until
        asyncio._set_running_loop(None)

    def _may_run(self, thread: Thread) -> bool:
        process = thread.process
        if process.dead:
            return False
        stopped_until = max(process.stopped_until, thread.stopped_until)
        if stopped_until > self.time:
            self.at(stopped_until, self.ready.append, thread)
            return False
        return True

    def end(self) -> None:
        """Nothing more happens in it. What is still on its way is thrown away."""
        self.over = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for process in self.processes:
                for thread in process.threads:
                    self.thread = thread
                    if thread.loop is not None:
                        asyncio._set_running_loop(None)
                    thread.greenlet.throw(GreenletExit)
                process.threads.clear()
            self.thread = None
            self._timers.clear()
            self.ready.clear()
        finally:
            sys.unraisablehook = hook
