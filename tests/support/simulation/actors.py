"""What the callers of a simulated world do beside those of any storm: jobs that are done once; what is done to them.

Their process is killed, or forked; and its clock drifts. Each copy of our package has callers of its own: see
``program``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distlock_web import Lease, current_lease, once
from distlock_web.core.backend import DRIFT_RATIO
from distlock_web.testing.history import ENDS, Event, History
from distlock_web.testing.storm import Caller, Row, Storm


@dataclass(slots=True)
class Run:
    """Of a job that is done once: under which fence, and when."""

    fence: int
    begin: float
    ended: bool = False  #: it has come to its end
    heard: float | None = None  #: when its caller heard that it is done


class SimulatedStorm(Storm):
    """``jobs`` are done ``once``, and done again after ``keep`` seconds."""

    def __init__(self, locks: int, clock: Callable[[], float], *, jobs: int = 0, keep: float = 3.0) -> None:
        super().__init__(locks, clock)
        self.jobs: dict[str, list[Run]] = {f"once:job:{number}": [] for number in range(jobs)}
        self.keep = keep
        for name in self.jobs:
            self.histories[name], self.rows[name] = History(), Row()

    def violations(self, *, order: float | None = None, **limits: Any) -> list[str]:
        """``order``: nobody entered who had asked so many seconds later than one who waited for so many more."""
        return [
            *super().violations(**limits),
            *(f"{name}: {found}" for name, runs in self.jobs.items() for found in self._again(runs, name)),
            *(
                f"{name}: {found}"
                for name, history in self.histories.items()
                if order is not None
                for found in overtaken(history.events, order)
            ),
        ]

    def _again(self, runs: Sequence[Run], name: str) -> Iterator[str]:
        """Runs that came too early: within ``keep`` of one that is done, and nothing was at fault meanwhile."""
        for run in runs:
            if run.heard is None:
                continue
            until = run.begin + self.keep * (1 - 2 * DRIFT_RATIO)
            for later in runs:
                if run.heard < later.begin < until and self.histories[name].is_calm(run.begin, later.begin):
                    yield f"done again: {later.fence}, {later.begin - run.begin:.3f} s after {run.fence} had begun"


def overtaken(events: list[Event], patience: float) -> Iterator[str]:
    """Somebody entered who had asked later than one who went on waiting."""
    waits: list[tuple[Event, float]] = []
    wanted: dict[str, Event] = {}
    entered: list[tuple[Event, float]] = []
    for event in events:
        if event.kind == "wanted":
            wanted[event.actor] = event
        elif event.kind in ENDS and (began := wanted.pop(event.actor, None)) is not None:
            if event.kind == "acquired":
                entered.append((began, event.at))
            if (began.value or 1) == 1:  # else it may have had this one while it waited for another
                waits.append((began, event.at))
    for first, until in waits:
        for later, moment in entered:
            if first.at + patience < later.at and moment + patience < until:
                yield f"order: {later.actor} entered at {moment:.6f}, and {first.actor} had asked before, and waited"


class SimulatedCaller(Caller):
    """``moment`` says when it is, on the one clock of all histories, if the engine's clock shows so much.

    ``aside`` is called now and then in its own code, outside of ours.
    """

    _storm: SimulatedStorm

    def __init__(self, *args: Any, moment: Callable[[float], float], aside: Callable[[], None]) -> None:
        super().__init__(*args)
        self._true_time = moment
        self._aside = aside

    def _moment(self, at: float) -> float:
        return self._true_time(at)

    async def _pause(self) -> None:
        await super()._pause()
        self._aside()

    async def _turn(self, told: list[Lease]) -> None:
        if self._storm.jobs and self._random.random() < 0.5:
            await self._do_once(self._random.choice(list(self._storm.jobs)))
        else:
            await super()._turn(told)

    async def _do_once(self, name: str) -> None:
        """Do a job that is done once, or hear what came of it: a fence, under which it was done to its end."""
        random, storm, ran = self._random, self._storm, list[Run]()

        async def job() -> int:
            lease = current_lease()
            assert lease is not None
            self._hold(lease)
            (hold,) = self._holds
            run = Run(hold.fence or 0, self._moment(hold.since))  # from there on it is kept, not from the answer
            storm.jobs[name].append(run)
            ran.append(run)
            try:
                for _ in range(random.choice((0, 1, 2))):
                    await self._pause()
            finally:
                self._let_go()
            run.ended = True
            return run.fence

        wait = random.choice((0, random.uniform(0, 10 * self._expire)))
        do = self._harness.decorated(
            job, once, key=lambda: name.removeprefix("once:"), keep=storm.keep, result=True, wait=wait,
            expire=self._expire * random.uniform(0.3, 1.0),
        )  # fmt: skip
        self._wanted, me = [name], self.actor
        self._say("wanted", 1)
        answer = await do()
        if me != self.actor:  # this is a copy of the process
            return
        if ran:
            ran[0].heard = self._histories.clock()
        elif not any(run.fence == answer and run.ended for run in storm.jobs[name]):
            self._wrong.append(f"{name}: {self.actor} was told {answer}, and nobody has done it")

    def killed(self, *, stopped: bool = False) -> None:
        """Whoever has killed it says so; or has stopped it for ever: then it believes in its leases to their ends."""
        for hold in self._holds:
            until = self._moment(hold.deadline)
            at = until if stopped else min(self._histories.clock(), until)
            self._histories[self._name_of(hold.name)].add(Event(self.actor, "killed", at))
        self._holds = ()
        self._say("killed")
        self._wanted, self._told = (), []

    def forked(self) -> None:
        """It goes on in a copy of its process, and the first one never does."""
        self.killed(stopped=True)
        self.actor += "'"
        if self._lease is not None and self._lease.state == "held":
            self._wrong.append(f"fork: {self.actor} has the lock of the process that it is a copy of")
