"""A store in the storm: callers that do all that callers do, a nemesis that interrupts them, and a checker.

``storm(seed=1)`` takes the store that is configured and says what must not have happened. The callers are threads and
tasks of an event loop. Requests and answers get lost on their way, or are late, or are done twice; tasks are cancelled
wherever they are. The seed decides what is tried; in real time it does not decide the result.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from random import Random

from distlock_web import BackendUnavailable, Lease, LeaseLost, LockBusy, lock
from distlock_web.core.backend import Capabilities
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.locks.hold import Hold

from .fault_injector import FaultInjector
from .harness import AsyncHarness, Harness, SyncHarness
from .history import Event, Histories, Kind


class Interrupted(BaseException):
    """What the handler of a signal raises in a thread, wherever it is."""


class Caller:
    """One actor: round after round it wants a lock or two, waits or does not, holds it, and lets go of it.

    ``moment`` says when it is, on the one clock of all histories, if the engine's clock shows so much.
    """

    def __init__(
        self,
        actor: str,
        harness: Harness,
        random: Random,
        histories: Histories,
        expire: float,
        moment: Callable[[float], float] = lambda at: at,
    ) -> None:
        self.actor = actor
        self.over = False  #: no further round
        self._harness = harness
        self._random = random
        self._histories = histories
        self._expire = expire
        self._moment = moment
        self._wanted: Sequence[str] = ()
        self._holds: Sequence[Hold] = ()

    def _say(self, kind: Kind, value: int | None = None, of: str = "") -> None:
        """Of all locks that it wants, or only of one: then of the others, that it has ended."""
        moment = self._histories.clock()
        for name in self._wanted:
            self._histories[name].add(Event(self.actor, kind if of in ("", name) else "ended", moment, value))

    async def rounds(self) -> None:
        while not self.over:
            try:
                await self._harness.sleep(self._random.uniform(0, self._expire / 3))
                await self._round()
            except (Interrupted, asyncio.CancelledError):
                if self._wanted:
                    self._say("interrupted")
                if (task := _current_task()) is not None:
                    task.uncancel()
            finally:
                self._wanted = ()

    async def _round(self) -> None:
        random, names = self._random, list(self._histories)
        wanted = random.sample(names, 2 if len(names) > 1 and random.random() < 0.1 else 1)
        waits = (0, random.uniform(0, self._expire), random.uniform(0, 10 * self._expire))
        wait = random.choice(waits if self._capabilities.waiting else (0,))
        expire = self._expire * random.uniform(0.3, 1.0)
        the_lock = lock(wanted, expire=expire, wait=wait, renew=random.random() < 0.3)
        self._wanted = wanted
        self._say("wanted", len(wanted))
        try:
            async with self._harness.inside(the_lock) as lease:
                await self._inside(lease, wanted)
        except LockBusy as busy:
            self._say("gave_up", of=self._name_of(busy.name or ""))
        except BackendUnavailable:
            self._say("unreachable")
        except LeaseLost:
            self._say("ended")
        else:
            self._say("ended")

    @property
    def _capabilities(self) -> Capabilities:
        return self._harness.store.backend.capabilities

    async def _inside(self, lease: Lease, wanted: Sequence[str]) -> None:
        holds = self._holds = list(lease._scope.holds)
        moment = self._histories.clock()
        for hold in holds:
            self._histories[self._name_of(hold.name)].add(Event(self.actor, "acquired", moment, hold.fence))
        try:
            for _ in range(self._random.choice((0, 1, 1, 2, 4))):
                await self._harness.sleep(self._random.uniform(0, self._expire / 3))
                await self._act(lease, wanted)
        finally:
            # Each lock by itself: of two the first may be lost before the second.
            for hold in holds:
                self._end(hold, "released" if hold.state in ("held", "unsure") else "lost")
            self._holds = ()

    def _end(self, hold: Hold, kind: Kind) -> None:
        """Now; or when its deadline came, whatever kept us from noticing."""
        at = min(self._histories.clock(), self._moment(hold.deadline))
        self._histories[self._name_of(hold.name)].add(Event(self.actor, kind, at))

    def killed(self) -> None:
        """Whoever has killed it says so."""
        for hold in self._holds:
            self._end(hold, "killed")
        self._say("killed")

    def _name_of(self, stored: str) -> str:
        return stored.removeprefix(self._harness.store.config.prefix)

    async def _act(self, lease: Lease, wanted: Sequence[str]) -> None:
        chance = self._random.random()
        if chance < 0.3:
            await self._harness.extend(lease, self._expire * self._random.uniform(0.3, 1.5))
        elif chance < 0.4:
            async with self._harness.inside(lock(wanted[0], expire=self._expire)):
                await self._harness.sleep(self._random.uniform(0, self._expire / 10))
        elif chance < 0.6:
            lease.raise_if_lost()


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def storm(
    *, seed: int, seconds: float = 5.0, store: str = "default", locks: int = 2, threads: int = 3, tasks: int = 3,
    expire: float = 1.0, cancel_every: float = 0.2,
) -> list[str]:  # fmt: skip
    """What must not have happened, in words, after so many seconds in which all of these wanted so many locks.

    ``expire`` is the longest lease; ``cancel_every`` the seconds between two cancellations of a task. The locks are
    named ``storm:0`` and so on, and have to be free when it begins.
    """
    random, where = Random(seed), registry().store(store)
    injector = FaultInjector(where)
    histories = Histories((f"storm:{number}" for number in range(locks)), now)
    injector.disturb(Random(random.random()), 0.1, expire / 4, histories.fault)

    def callers(kind: type[Harness], number: int) -> list[Caller]:
        name = kind.__name__[:-7].lower()
        return [
            Caller(f"{name}{one}", kind(where), Random(random.random()), histories, expire) for one in range(number)
        ]

    blocking, suspending = callers(SyncHarness, threads), callers(AsyncHarness, tasks)
    running = [threading.Thread(target=one._harness.run, args=(one.rounds(),)) for one in blocking]
    for thread in running:
        thread.start()
    try:
        asyncio.run(_in_tasks(suspending, random, seconds, cancel_every))
    finally:
        for one in blocking:
            one.over = True
        for thread in running:
            thread.join()
        injector.remove()
    return histories.violations(bound=2 * expire)


async def _in_tasks(callers: Sequence[Caller], random: Random, seconds: float, cancel_every: float) -> None:
    running = [asyncio.ensure_future(one.rounds()) for one in callers]
    until = now() + seconds
    while now() < until:
        await asyncio.sleep(random.uniform(0, 2 * cancel_every))
        if running:
            random.choice(running).cancel()
    for one in callers:
        one.over = True
    await asyncio.gather(*running)
