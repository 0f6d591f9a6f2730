"""What happens in a world: which processes want which locks, on which servers, and what the nemesis does to them."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

from tests.support.storm import SHARES, Storm

from . import loop as loops
from . import system
from .nested import Nest, NestedCaller
from .program import Program
from .world import Machine, Process, Thread, World

#: Seconds of the longest lease.
EXPIRE = 1.0
#: Seconds of the longest that one is extended to.
LONGEST = 1.5 * EXPIRE
#: Seconds that the callers go on after the last misfortune, and that they then have to come to their end.
CALM, PATIENCE = 1.0, 30.0


@dataclass
class Result:
    """What came of one seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    sections: int = 0
    turns: int = 0
    seconds: float = 0.0
    digest: int = 0


class Actor:
    """A caller of the workload in its process: one thread, or one task of the process's event loop."""

    def __init__(self, caller: Any, process: Process) -> None:
        self.caller = caller
        self.process = process
        self.program = process.program
        self.thread: Thread | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = False

    def interrupt(self) -> None:
        """Where it is now: a task is cancelled, a thread is interrupted by a signal."""
        if self.task is not None:
            loop = self.task.get_loop()
            if not self.ended and not loop.is_closed():
                loop.call_soon_threadsafe(self.task.cancel)
        elif self.thread is not None:
            self.thread.interrupt(self.program.storm.Interrupted())


class Scenario:
    """One world, from its seed. A subclass says what the store is, and what may happen to it."""

    locks = 2
    jobs = 0  #: that are done once
    processes = 1
    drift = 0.004
    forks = 0.0  #: how often a thread forks its process, of the times that it might

    def __init__(self, seed: int, programs: list[Program]) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = Random(self.world.random.random())
        self.programs = programs
        self.storm = Storm(self.locks, self.world.moment, jobs=self.jobs)
        self.histories = self.storm.histories
        self.actors: list[Actor] = []
        self.starting = 0
        self.rage = self.random.choice((1.5, 2.5, 2.5, 10.0))  #: seconds for which misfortunes happen
        self.healed_at = 0.0  #: when the last misfortune was over
        self.left: list[str] = []

    # What a subclass says -----------------------------------------------------------------------------------------

    def settings(self, number: int) -> Mapping[str, Any]:
        """``DISTLOCK`` of this process."""
        raise NotImplementedError

    def started(self, program: Program) -> None:
        """A process has its store."""

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        """What may happen, and how often: once in so many seconds."""
        return [(0.5, self.interrupt_somebody), (2.0, self.stop_a_process), (1.5, self.stop_a_thread)]

    def limits(self) -> dict[str, Any]:
        """What the checker is asked."""
        return {"bound": LONGEST + 0.2, "honest": LONGEST + 0.2}

    # How it goes --------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        system.enter(self.world)
        errors = Errors()
        logging.getLogger("distlock_web").addHandler(errors)
        try:
            for number in range(self.processes):
                self.start_process(number)
            for every, misfortune in self.misfortunes():
                self.repeat(every, misfortune)
            self.world.run(self.rage)
            self.world.run(max(self.world.time, self.healed_at) + CALM)
            self.calm()
            self.world.run(self.world.time + PATIENCE, self.all_ended)
            self.look_at_what_is_left()
        finally:
            logging.getLogger("distlock_web").removeHandler(errors)
            found = self.violations(errors)
            self.world.end()
            for program in self.programs:
                program.end()
            system.enter(None)
        return Result(self.seed, found, self.sections(), self.world.turns, self.world.time, self.world.digest)

    def violations(self, errors: Errors) -> list[str]:
        found = self.storm.violations(**self.limits())
        found += [f"crash: {thread.name}: {error!r}" for thread, error in self.world.crashes]
        found += [
            f"not ended: {actor.caller.actor}" for actor in self.actors if not actor.ended and not actor.process.dead
        ]
        return found + self.world.wrong + errors.found + self.left

    def start_process(self, number: int) -> Process:
        machine = Machine(self.world, f"machine{number}", self.drift)
        process = self.world.process(machine, f"process{number}")
        program = process.program = self.programs[number]
        self.starting += 1
        process.spawn(self._main, process, program, number)
        return process

    def _main(self, process: Process, program: Program, number: int) -> None:
        program.begin(self.settings(number))
        self.started(program)
        store = program["core.registry"].registry().store("default")
        harness, random = program["testing.harness"], self.random

        def actor(kind: str, one: int) -> Actor:
            at = harness.HARNESSES[kind](store)
            made = self.caller(f"{process.name}.{kind}{one}", at, process, lambda: self.aside(found))
            found: Actor = Actor(made, process)
            self.actors.append(found)
            return found

        for one in range(random.choice((1, 2, 3))):
            in_thread = actor("threads", one)
            in_thread.thread = process.spawn(self._in_thread, program, in_thread, name=in_thread.caller.actor)
        in_tasks = [actor("asyncio", one) for one in range(random.choice((0, 1, 2, 3)))]
        self.starting -= 1
        loops.run(self._in_loop(in_tasks))

    def caller(self, name: str, harness: Any, process: Process, aside: Callable[[], None]) -> Any:
        """What an actor does."""
        return process.program.storm.Caller(
            name, harness, Random(self.random.random()), self.storm, EXPIRE,
            moment=process.machine.true_time, aside=aside,
        )  # fmt: skip

    def sections(self) -> int:
        return sum(len(history.sections()) for history in self.histories.values())

    def _in_thread(self, program: Program, actor: Actor) -> None:
        while True:
            try:
                program["core.runtime"].drive(actor.caller.rounds())
                break
            except program.storm.Interrupted:  # between two rounds
                pass
        actor.ended = True

    async def _in_loop(self, actors: list[Actor]) -> None:
        for actor in actors:
            actor.task = asyncio.ensure_future(actor.caller.rounds())
        for actor in actors:
            assert actor.task is not None
            await asyncio.wait([actor.task])
            actor.ended = True
            actor.task.result()

    def repeat(self, every: float, misfortune: Callable[[], None]) -> None:
        def again() -> None:
            if self.world.time < self.rage:
                misfortune()
                self.world.after(self.random.expovariate(1 / every), again)

        self.world.after(self.random.expovariate(1 / every), again)

    def calm(self) -> None:
        """The storm is over: everybody ends what they do."""
        for actor in self.actors:
            actor.caller.over = True

    def all_ended(self) -> bool:
        return not self.starting and all(a.ended or a.process.dead for a in self.actors)

    def look_at_what_is_left(self) -> None:
        """A lease after everybody has ended nothing may be held, and nobody may stand in a queue."""
        self.world.run(max(self.world.time, self.healed_at) + LONGEST + 0.5)
        process = self.alive()[0]
        thread = process.spawn(self._look, process.program, name="look")
        self.world.run(self.world.time + 5.0, lambda: not thread.is_alive())
        if thread.is_alive():
            self.left.append("left: the store could not be looked at")

    def _look(self, program: Program) -> None:
        runtime = program["core.runtime"]
        port = program["core.registry"].registry().store("default").port(runtime.THREADS)
        lines = runtime.drive(program["core.backend"].retry_once(port.inspect))
        self.left += [f"left: {line}" for line in lines]

    # Misfortunes --------------------------------------------------------------------------------------------------

    def interrupt_somebody(self) -> None:
        if self.actors:
            self.random.choice(self.actors).interrupt()

    def aside(self, actor: Actor) -> None:
        """In a caller's own code: perhaps it forks. The parent is stopped for ever, and keeps its locks."""
        if actor.thread is None or self.random.random() >= self.forks or self.world.time > self.rage:
            return
        parent = actor.process
        actor.process = parent.fork(actor.thread)
        if self.random.random() < 0.5:  # else it was forked in C, and Python was not told
            actor.program["core.process"].check_process()
        for other in self.actors:
            if other.process is parent:
                other.caller.killed(stopped=True)
        actor.caller.forked()

    def alive(self) -> list[Process]:
        return [process for process in self.world.processes if not process.dead]

    def stop_a_process(self) -> None:
        process, seconds = self.random.choice(self.alive()), self.random.choice((0.01, 0.1, 0.5, 1.5)) * EXPIRE
        self._at_fault_for(f"{process.name} stopped", seconds)
        process.stop(seconds)

    def stop_a_thread(self) -> None:
        """It is late: garbage is collected, another thread computes, a callback blocks the event loop."""
        process = self.random.choice(self.alive())
        threads = [thread for thread in process.threads if thread.is_alive()]
        if threads:
            thread, seconds = self.random.choice(threads), self.random.choice((0.01, 0.1, 0.5)) * EXPIRE
            self._at_fault_for(f"{thread.name} late", seconds)
            thread.stopped_until = self.world.time + seconds

    def _at_fault_for(self, what: str, seconds: float) -> None:
        self.healed_at = max(self.healed_at, self.world.time + seconds)
        self.world.after(seconds, self.histories.fault(what))


logging.getLogger("distlock_web").addHandler(logging.NullHandler())


class Errors(logging.Handler):
    """What our package logs as an error is a defect of it: nothing here is anybody else's."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self.found.append(f"logged: {record.getMessage()}{why}")


class Memory(Scenario):
    """The engine, the watchdog and the memory store; requests and answers are lost between them."""

    def settings(self, number: int) -> Mapping[str, Any]:
        return {"default": {"BACKEND": "memory"}}

    def started(self, program: Program) -> None:
        store = program["core.registry"].registry().store("default")
        often = self.random.choice((0.0, 0.01, 0.05, 0.15))
        injector = program.storm.Disturbed(store, Random(self.random.random()), often, EXPIRE / 4, self.histories.fault)
        self.world.at(self.rage, injector.remove)


class MemoryOnce(Memory):
    """The same, and jobs that are done once."""

    locks, jobs = 1, 2


class Sharing(Scenario):
    """In front of another: a lock with several holders. In a third of the seeds nothing happens: nobody may be late."""

    locks = 1

    def __init__(self, seed: int, programs: list[Program]) -> None:
        super().__init__(seed, programs)
        self.storm.shares = self.random.choice(SHARES)
        self.storm.quiet = self.random.random() < 0.33
        if self.storm.quiet:
            self.forks = 0.0

    def started(self, program: Program) -> None:
        if not self.storm.quiet:
            super().started(program)

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        return [] if self.storm.quiet else super().misfortunes()

    def limits(self) -> dict[str, Any]:
        return {**super().limits(), "bound": 0.2, "order": 0.3} if self.storm.quiet else super().limits()


class MemoryShared(Sharing, Memory):
    """Readers and writers, and places, in memory."""


class Nesting(Scenario):
    """In front of another: blocks inside of blocks. In half of the seeds nothing happens: nobody is late."""

    def __init__(self, seed: int, programs: list[Program]) -> None:
        super().__init__(seed, programs)
        self.forks = 0.0
        self.nest = Nest(self.world, self.random, self._is_calm)

    def _is_calm(self, begin: float, end: float) -> bool:
        return all(history.is_calm(begin, end) for history in self.histories.values())

    def started(self, program: Program) -> None:
        if not self.nest.quiet:
            super().started(program)

    def caller(self, name: str, harness: Any, process: Process, aside: Callable[[], None]) -> Any:
        return NestedCaller(name, harness, Random(self.random.random()), self.nest, process, EXPIRE)

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        every = [] if self.nest.quiet else super().misfortunes()
        return [(seconds, misfortune) for seconds, misfortune in every if misfortune != self.interrupt_somebody]

    def sections(self) -> int:
        return self.nest.sections

    def violations(self, errors: Errors) -> list[str]:
        return super().violations(errors) + self.nest.wrong


class MemoryNested(Nesting, Memory):
    """Blocks inside of blocks, in memory."""


_programs: list[Program] = []


def run(scenario: type[Scenario], seed: int, programs: list[Program] | None = None) -> Result:
    """One seed of one scenario."""
    if programs is None:
        programs = _programs
        while len(programs) < scenario.processes:
            programs.append(Program())
            gc.collect()
            gc.freeze()
    gc.disable()
    try:
        with mock.patch.object(logging, "raiseExceptions", False):
            return scenario(seed, programs).run()
    finally:
        gc.enable()
        if seed % 20 == 0:
            gc.collect()
