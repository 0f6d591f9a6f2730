"""Callers that do all that callers do, on any store; what happens to them on their way; and a checker.

``storm(seed=1)`` takes the store that is configured, in real time: threads and tasks of an event loop, whose requests
and answers get lost, or are late, or are done twice. The seed decides what is tried, not the result. The simulation has
the same callers in worlds of its own: there each copy of our package has callers of its own (see ``program``), whose
processes are killed and forked, and whose clocks drift.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from distlock_web import BackendUnavailable, Lease, LeaseLost, LockBusy, NotHeld, current_lease, lock, once
from distlock_web.core.backend import DRIFT_RATIO, SHARED, Capabilities
from distlock_web.core.registry import Store, registry
from distlock_web.core.runtime import THREADS, Runtime, now
from distlock_web.locks.hold import Hold
from distlock_web.locks.lease import scope_of
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import AsyncHarness, Harness, SyncHarness

from .history import ENDS, Event, Histories, History, Kind

#: In which ways one lock is asked for, by all of its callers: the last, in every way.
SHARES: Sequence[Sequence[Mapping[str, Any]]] = (
    ({}, {"shared": True}, {"shared": True}),
    ({"limit": 2},),
    ({"limit": 2}, {"limit": 3}),
    ({}, {"limit": 2}, {"limit": 3}, {"shared": True}),
)


class Interrupted(BaseException):
    """What the handler of a signal raises in a thread, wherever it is."""


class Row:
    """A row of somebody's data that refuses writes under an old fence: it is stamped, read, then written."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._fence = self._count = 0
        self._lock = threading.Lock()

    def stamp(self, fence: int) -> int | None:
        """Read it; None: a newer holder has stamped it."""
        with self._lock:
            if fence < self._fence:
                return None
            self._fence = fence
            return self._count

    def write(self, fence: int, count: int) -> None:
        """Write what was read, and one more. Refused if another holder has stamped it meanwhile."""
        with self._lock:
            if fence == self._fence:
                if count != self._count + 1:
                    self.violations.append(f"lost update: {count} was written over {self._count}, under {fence}")
                self._count = count


@dataclass(slots=True)
class Run:
    """Of a job that is done once: under which fence, and when."""

    fence: int
    begin: float
    ended: bool = False  #: it has come to its end
    heard: float | None = None  #: when its caller heard that it is done


class Storm:
    """What the callers share: the histories of their locks, a row for each, and tickets on their way.

    ``shares``: with which further options of ``lock`` the locks are asked for; then one is released by force now and
    then, too. ``jobs`` are done ``once``, and done again after ``keep`` seconds.
    """

    def __init__(
        self,
        locks: int,
        clock: Callable[[], float],
        *,
        shares: Sequence[Mapping[str, Any]] = (),
        jobs: int = 0,
        keep: float = 3.0,
    ) -> None:
        self.locks = [f"storm:{number}" for number in range(locks)]
        self.jobs: dict[str, list[Run]] = {f"once:job:{number}": [] for number in range(jobs)}
        self.keep = keep
        self.shares = shares
        #: No lock is handed over, and no lease ends before its block: whoever waits has its turn at once.
        self.quiet = False
        self.revoked: dict[tuple[str, int | None], float] = {}  #: when what was held under this fence was surely gone
        self.histories = Histories([*self.locks, *self.jobs], clock)
        self.rows = {name: Row() for name in self.histories}
        self.tickets: list[tuple[Sequence[str], str]] = []
        self.callers: list[Caller] = []

    def ticket(self) -> tuple[Sequence[str], str] | None:
        """One that nobody has taken yet, with its locks."""
        try:
            return self.tickets.pop(0)
        except IndexError:
            return None

    def violations(self, *, order: float | None = None, **limits: Any) -> list[str]:
        """What must not have happened, in words; ``limits`` are those of ``History.violations``.

        ``order``: nobody entered who had asked so many seconds later than one who waited for so many more.
        """
        found = self.histories.violations(**limits)
        for name, row in self.rows.items():
            found += [f"{name}: {each}" for each in row.violations]
        for name, runs in self.jobs.items():
            found += [f"{name}: {each}" for each in self._again(runs, self.histories[name])]
        if order is not None:
            for name, history in self.histories.items():
                found += [f"{name}: {each}" for each in overtaken(history.events, order)]
        return found + [each for caller in self.callers for each in caller.violations()]

    def _again(self, runs: Sequence[Run], history: History) -> Iterator[str]:
        """Runs that came too early: within ``keep`` of one that is done, and nothing was at fault meanwhile."""
        for run in runs:
            if run.heard is None:
                continue
            until = run.begin + self.keep * (1 - 2 * DRIFT_RATIO)
            for later in runs:
                if run.heard < later.begin < until and history.is_calm(run.begin, later.begin):
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


class Caller:
    """One actor: round after round it wants a lock or two, waits or does not, holds it, and lets go of it.

    ``moment`` says when it is, on the one clock of all histories, if the engine's clock shows so much. ``aside`` is
    called now and then in its own code, outside of ours.
    """

    def __init__(
        self,
        actor: str,
        harness: Harness,
        random: Random,
        storm: Storm,
        expire: float,
        *,
        moment: Callable[[float], float] = float,
        aside: Callable[[], None] = lambda: None,
    ) -> None:
        self.actor = actor
        self.over = False  #: no further round
        self._harness = harness
        self._random = random
        self._storm = storm
        self._histories = storm.histories
        self._expire = expire
        self._moment = moment
        self._aside = aside
        self._begun = self._over = 0.0
        self._wanted: Sequence[str] = ()
        self._share: Mapping[str, Any] = {}
        self._holds: Sequence[Hold] = ()
        self._held: Sequence[Hold] = ()  # the same, to the end of the round
        self._lease: Lease | None = None
        self._told: list[list[Lease]] = []  # for each loss that it has seen, how often on_lost was called
        self._wrong: list[str] = []
        storm.callers.append(self)

    def _say(self, kind: Kind, value: int | None = None, of: str = "") -> None:
        """Of all locks that it wants, or only of one: then of the others, that it has ended."""
        moment = self._histories.clock()
        for name in self._wanted:
            told = kind if of in ("", name) else "ended"
            self._histories[name].add(Event(self.actor, told, moment, value, self._limit))

    @property
    def _limit(self) -> int:
        return SHARED if self._share.get("shared") else self._share.get("limit", 1)

    async def rounds(self) -> None:
        while not self.over:
            try:
                await self._pause()
                await self._round()
            except (Interrupted, asyncio.CancelledError):
                if self._wanted:
                    self._say("interrupted")
                if (task := _current_task()) is not None:
                    task.uncancel()
            finally:
                self._wanted, self._share, self._held = (), {}, ()

    async def _round(self) -> None:
        told: list[Lease] = []
        try:
            if self._storm.tickets and self._random.random() < 0.5 and (ticket := self._storm.ticket()) is not None:
                await self._take_on(*ticket)
            else:
                await self._turn(told)
        except LockBusy as busy:
            self._say("gave_up", of=self._name_of(busy.name or ""))
        except BackendUnavailable:
            self._say("unreachable")
            self._wanted = ()
            await self._harness.sleep(self._random.uniform(0, 2 * self._expire))
        except (LeaseLost, NotHeld):
            self._say("ended")
            self._look_back()
        else:
            self._say("ended")
            self._look_back()

    async def _turn(self, told: list[Lease]) -> None:
        if self._storm.jobs and self._random.random() < 0.5:
            await self._do_once(self._random.choice(list(self._storm.jobs)))
        elif self._storm.shares and not self._storm.quiet and self._random.random() < 0.07:
            await self._release_by_force(self._random.choice(self._storm.locks))
        else:
            await self._take(told)

    async def _pause(self) -> None:
        """Code of its own, outside of ours."""
        await self._harness.sleep(self._random.uniform(0, self._expire / 3))
        self._aside()

    def _lease_of(self, least: float, most: float) -> float:
        """Seconds between so much of the usual lease and so much, as far as the store can express them."""
        return max(self._capabilities.min_expire, self._expire * self._random.uniform(least, most))

    async def _take(self, told: list[Lease]) -> None:
        random, names, expire = self._random, list(self._storm.locks), self._expire
        wanted = random.sample(names, 2 if len(names) > 1 and random.random() < 0.2 else 1)
        waits = (0, random.uniform(0, expire), random.uniform(0, 10 * expire))
        cancel = "raise" if self._harness.runtime is THREADS else "cancel"
        policies: list[Any] = ["raise", "warn", told.append, cancel]
        on_lost = random.choice(policies)
        self._share = random.choice(self._storm.shares) if self._storm.shares else {}
        the_lock = lock(
            wanted, expire=self._lease_of(0.3, 1.0), renew=random.random() < 0.3 or self._storm.quiet,
            on_lost=on_lost, wait=random.choice(waits), **self._share,
        )  # fmt: skip
        self._wanted = wanted
        self._say("wanted", len(wanted))
        me = self.actor
        async with self._harness.inside(the_lock) as lease:
            await self._inside(lease)
            if on_lost == told.append and lease.lost and me == self.actor:  # a copy of the process is not told
                self._told.append(told)

    async def _take_on(self, names: Sequence[str], ticket: str) -> None:
        self._wanted = names
        self._say("wanted", len(names))
        async with self._harness.inside(await self._harness.attach(ticket)) as lease:
            await self._inside(lease)

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
            expire=self._lease_of(0.3, 1.0),
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

    async def _release_by_force(self, name: str) -> None:
        """As an operator does it: one of those that have the lock, and know it. Others would not be told so."""
        store = self._harness.store
        port, stored = store.port(self._harness.runtime), store.config.prefix + name
        known = {event.value for event in self._histories[name].events if event.kind == "acquired"}
        lines = [line for line in await port.inspect([stored]) if line.fence in known]
        if lines:
            fence = self._random.choice(lines).fence or 0
            # Its holder learns of it at its next round trip, and excludes nobody meanwhile.
            self._histories[name].forget(self._histories.clock(), range(fence, fence + 1))
            if await port.revoke(stored, fence):
                self._storm.revoked[name, fence] = self._histories.clock()

    def _look_back(self) -> None:
        """What the store has told of a lease that had not ended yet."""
        alone = any("shared" not in share and "limit" not in share for share in self._storm.shares)
        for hold in self._held if self._storm.shares else ():
            name, moment = self._name_of(hold.name), self._histories.clock()
            history = self._histories[name]
            if not history.is_calm(self._begun, moment):
                continue
            early = hold.state == "lost" and hold.reason in ("expired", "taken", "revoked") and now() < hold.deadline
            revoked = self._storm.revoked.get((name, hold.fence))
            if hold.state == "released" and revoked is not None and revoked < self._over:
                self._wrong.append(f"{name}: {self.actor} gave {hold.fence} back, which had been taken from it")
            elif early and not history.is_forgotten(hold.fence):
                self._wrong.append(f"{name}: {self.actor} was told that {hold.fence} is {hold.reason}, and it had time")
            elif early and hold.reason != "revoked" and not alone:
                self._wrong.append(f"{name}: {self.actor} was told that {hold.fence} is {hold.reason}, not revoked")

    @property
    def _capabilities(self) -> Capabilities:
        return self._harness.store.backend.capabilities

    def _hold(self, lease: Lease) -> None:
        self._lease, self._holds = lease, list(scope_of(lease).holds)
        self._held = self._holds
        self._begun = self._histories.clock()
        for hold in self._holds:
            event = Event(self.actor, "acquired", self._begun, hold.fence, self._limit)
            self._histories[self._name_of(hold.name)].add(event)

    def _let_go(self) -> None:
        # Each lock by itself: of two the first may be lost before the second.
        self._over = self._histories.clock()
        for hold in self._holds:
            self._end(hold, "released" if hold.state in ("held", "unsure") else "lost")
        self._lease, self._holds = None, ()

    async def _inside(self, lease: Lease) -> None:
        self._hold(lease)
        try:
            for _ in range(self._random.choice((0, 1, 1, 2, 4))):
                await self._pause()
                await self._act(lease)
                if not self._holds:  # handed over, or this is a copy of the process
                    break
        finally:
            self._let_go()

    def _end(self, hold: Hold, kind: Kind) -> None:
        """Now; or when its deadline came, whatever kept us from noticing. That may have been before it was ours."""
        at = max(self._begun, min(self._histories.clock(), self._moment(hold.deadline)))
        self._histories[self._name_of(hold.name)].add(Event(self.actor, kind, at))

    def _name_of(self, stored: str) -> str:
        return stored.removeprefix(self._harness.store.config.prefix)

    async def _act(self, lease: Lease) -> None:
        chance, harness, name = self._random.random(), self._harness, self._random.choice(self._wanted or [""])
        if chance < 0.3:
            await self._extend(lease)
        elif chance < 0.4 and name:
            async with harness.inside(lock(name, expire=self._expire, **self._share)):
                await harness.sleep(self._random.uniform(0, self._expire / 10))
        elif chance < 0.55:
            lease.raise_if_lost()
        elif chance < 0.75 and name:
            await self._write(lease, name)
        elif (
            chance < 0.85
            and self._capabilities.transfer
            and self._wanted
            and self._limit == 1
            and not self._storm.quiet
        ):
            # From here on the lock is on its way, and nobody's.
            for hold in self._holds:
                self._end(hold, "detached" if hold.state in ("held", "unsure") else "lost")
            self._holds, self._held, names = (), (), self._wanted
            self._storm.tickets.append((names, await harness.detach(lease, self._lease_of(0.3, 1))))

    async def _extend(self, lease: Lease) -> None:
        asked = self._histories.clock()
        await self._harness.extend(lease, self._lease_of(0.1, 1.5))
        for hold in self._holds:
            name = self._name_of(hold.name)
            if self._storm.revoked.get((name, hold.fence), asked) < asked:
                self._wrong.append(f"{name}: {self.actor} extended {hold.fence}, which had been taken from it")

    async def _write(self, lease: Lease, name: str) -> None:
        """Whoever surely has the lock is not refused; whoever is late does not write over its successor."""
        row, fence = self._storm.rows[name], lease.fences.get(self._harness.store.config.prefix + name)
        if fence is None or self._limit > 1:  # only one that is alone fences rows
            return
        count = row.stamp(fence)
        if count is None:
            if lease.state == "held" and not self._histories[name].is_forgotten(fence):
                row.violations.append(f"refused: {self.actor} has the lock under {fence}, and a newer fence was there")
            return
        await self._harness.sleep(self._random.uniform(0, 2 * self._expire) * self._random.random() ** 3)
        row.write(fence, count + 1)

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

    def violations(self) -> list[str]:
        told = (f"on_lost: {self.actor} was told {len(told)} times of a loss" for told in self._told if len(told) != 1)
        return [*self._wrong, *told]


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class Disturbed(FaultInjector):
    """So many of the requests and answers are lost, come up to ``slowest`` seconds late, or come twice.

    ``fault`` is called where one is late, and what it returns where that is over.
    """

    def __init__(
        self, store: Store, random: Random, often: float, slowest: float, fault: Callable[[], Callable[[], None]]
    ) -> None:
        super().__init__(store)
        self._random = random
        self._often = often
        self._slowest = slowest
        self._fault = fault

    async def send(self, runtime: Runtime, verb: str, send: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        chance, often = self._random.random(), self._often
        if chance < 2 * often:
            await self._late(runtime)
        if chance < often:
            raise BackendUnavailable("The storm has lost a request.")
        answer = await send(*args)
        if chance < 3 * often and verb != "wait":
            answer = await send(*args)
        if chance > 1 - 2 * often:
            await self._late(runtime)
        if chance > 1 - often:
            raise BackendUnavailable("The storm has lost an answer.")
        return answer

    async def _late(self, runtime: Runtime) -> None:
        over = self._fault()
        try:
            await runtime.parker().park(self._random.uniform(0, self._slowest))
        finally:
            over()


def storm(*, seed: int, seconds: float, locks: int = 2) -> list[str]:
    """What must not have happened, in words, after so many seconds on the store that is configured."""
    random, where = Random(seed), registry().store("default")
    # Twice the shortest at least: most leases are longer, and one that the store rounds up is still within the bound.
    expire = max(1.0, 2 * where.backend.capabilities.min_expire)
    shared = Storm(locks, now, shares=SHARES[-1] if where.backend.capabilities.sharing else ())
    injector = Disturbed(where, Random(random.random()), 0.1, expire / 4, shared.histories.fault)

    def callers(kind: type[Harness]) -> list[Caller]:
        name = kind.__name__[:-7].lower()
        return [Caller(f"{name}{one}", kind(where), Random(random.random()), shared, expire) for one in range(3)]

    blocking, suspending = callers(SyncHarness), callers(AsyncHarness)
    running = [threading.Thread(target=one._harness.run, args=(one.rounds(),)) for one in blocking]
    for thread in running:
        thread.start()
    try:
        asyncio.run(_in_tasks(suspending, random, seconds))
    finally:
        for one in blocking:
            one.over = True
        for thread in running:
            thread.join()
        injector.remove()
    give_up = now() + expire  # a loss is told in a thread of its own
    while now() < give_up and any(not told for caller in shared.callers for told in caller._told):
        time.sleep(0.01)
    # What was sent may be late by as long as the machine stands still, and then holds the lock for a lease.
    return shared.violations(bound=2 * expire, honest=5 * expire)


async def _in_tasks(callers: Sequence[Caller], random: Random, seconds: float) -> None:
    running = [asyncio.ensure_future(one.rounds()) for one in callers]
    until = now() + seconds
    while now() < until:
        await asyncio.sleep(random.uniform(0, 0.4))
        if running:
            random.choice(running).cancel()
    for one in callers:
        one.over = True
    await asyncio.gather(*running)
