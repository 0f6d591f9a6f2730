"""Call chains: blocks inside of blocks, their siblings in tasks and threads, leases that are handed on; and a checker.

Each actor of each process goes round after round into a block, and inside of it does what programs do there. What it
has at a moment is compared with what all others have at the same moment, by the world's one clock:

- of those that believe in one acquisition two are only so related that one of them is inside of the other's block;
- whoever has come in by a block that has ended has lost his lease, and is told at his end;
- a block ends its own lease, and no other; a lease in no block is nobody's second one;
- a nested block has the lease that it asks for, or half of it; its ``hold_at_least`` keeps the lock; no more wait than
  its ``max_waiters`` says.

A process believes by its own machine's clock. The last three, and that the store is unreachable, need a while in which
nothing is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from random import Random
from typing import Any

from distlock_web.core.backend import SHARED, at_once

from .world import Process, World

#: Seconds after which one that asked surely waits, where nobody is stopped.
SURELY = 0.05
#: Seconds by which the clock of a machine may be wrong here.
SLACK = 0.02
#: How the callers of one world take their locks.
SHARES: Sequence[Sequence[Mapping[str, Any]]] = (
    ({},), ({},), ({},),
    ({"limit": 2},), ({"limit": 2}, {"limit": 3}),
    ({"shared": True},), ({}, {"shared": True}),
)  # fmt: skip
#: What callers may ask for, and are told that it cannot be: to enter a lease twice, to hand over what is not theirs
#: alone, and to be alone inside of a block of readers.
REFUSALS = ("entered already", "outermost", "handed over", "wait for itself")
#: Seconds after the end of a fault for which the store may be called unreachable.
AFTERMATH = 2.5


class Body:
    """What runs under a lease: a block; or the lease itself, as long as it is in none (``waits``)."""

    def __init__(self, name: str, process: Process, lease: Any, path: Path, *, waits: bool = False) -> None:
        self.name = name
        self.process = process
        self.lease = lease
        self.lock: str = lease.name
        self.fence: int = lease.fence
        self.limit: int = lease._scope.spec.limit  #: how many may hold the lock, this one among them
        self.path = path
        self.waits = waits
        self.exits = self.exited = False  #: or, of a lease, entered elsewhere: no block comes in by it any more
        #: The blocks around it by which it may have come in. By one that ends at this moment it has, or has not.
        self.above = [body for body in path if body.is_of(self) and not body.exits]

    def is_of(self, other: Body) -> bool:
        return (self.lock, self.fence) == (other.lock, other.fence)

    @property
    def state(self) -> str:
        """As its own process sees it, by that one's clock."""
        with self.process.looks():
            return str(self.lease.state)

    def is_held(self) -> bool:
        return not self.waits and self.state in ("held", "unsure")

    def ends(self) -> bool:
        """Its code is over, its block ends now. Whether it has outlived a block around it."""
        self.exits = True
        return self.outlives()

    def outlives(self) -> bool:
        return any(body.exited for body in self.above)


#: The bodies that a call chain is inside of, the outermost first.
Path = tuple[Body, ...]


class Wait:
    def __init__(self, asked: float) -> None:
        self.asked = asked
        self.left: float | None = None


class Nest:
    """What all callers share, and what is wrong with it."""

    def __init__(self, world: World, random: Random, is_calm: Callable[[float, float], bool]) -> None:
        self.clock = world.moment
        self._is_calm = is_calm  #: whether nothing is at fault from a moment to another
        self._world = world
        self.locks = ["nest:0", "nest:1"][: random.choice((1, 1, 2))]
        self.shares = random.choice(SHARES)
        self.quiet = random.random() < 0.5  #: nothing is at fault, and nobody is stopped
        self.wrong: list[str] = []
        self.sections = 0
        self.open: list[Body] = []
        self.tickets: list[str] = []
        self.waiting: dict[tuple[str, Body], list[Wait]] = {}
        self._limit: dict[tuple[str, int], int] = {}  # of an acquisition
        self._keep: dict[tuple[str, int], float] = {}  # the same, until when it stays taken at its end
        self._kept: dict[str, tuple[float, float]] = {}  # of a lock, since when it was asked for that, and until when
        self._forgotten = 0

    def is_calm(self, since: float) -> bool:
        return self.quiet or self._is_calm(since, self.clock())

    def killed(self, process: Process) -> None:
        """Nobody of it believes in anything any more."""
        self.open = [body for body in self.open if body.process is not process]

    def forget(self, fences: range) -> None:
        """The store has lost what it gave under these fences."""
        self._forgotten = fences.stop
        self._kept.clear()

    def say(self, body: Body, what: str) -> None:
        self.wrong.append(f"{body.lock}: {body.name} at {self.clock():.6f}: {what}")

    def enter(self, body: Body) -> None:
        self.sections += 1
        known = (body.lock, body.fence)
        if known not in self._keep:
            self._keep[known], self._limit[known] = 0.0, body.limit
            since, until = self._kept.get(body.lock, (0.0, 0.0))
            if self.clock() < until and body.limit == 1 and self.is_calm(since):
                self.say(body, f"hold_at_least was to keep it taken until {until:.6f}")
        self.open.append(body)
        self.look(body)

    def look(self, body: Body) -> None:
        """If it believes in its lock, it is compared with all others: at one moment, though each look is at a clock."""
        self._world.still = True
        try:
            self._compare(body)
        finally:
            self._world.still = False

    def _compare(self, body: Body) -> None:
        if body.state == "released":
            self.say(body, "its block goes on, and its lease was released")
        if not body.is_held():
            return
        if body.outlives():
            self.say(body, "outlives a block around it, and was not told")
        inside = [other for other in self.open if other.lock == body.lock and other.is_held()]
        known = [other for other in inside if other.fence >= self._forgotten]
        if known and len({other.fence for other in known}) > reduce(at_once, [other.limit for other in known]):
            self.say(body, f"more holders than may be: {[other.name for other in inside]}")
        if self._limit[body.lock, body.fence] == SHARED:
            return
        for other in inside:
            if other is not body and other.is_of(body) and other not in body.path and body not in other.path:
                self.say(body, f"inside beside {other.name}")

    def exit(self, body: Body, since: float, keep: float, lost: bool, outlived: bool) -> None:
        """Its block has ended: with ``LeaseLost``, or not."""
        body.exited = True
        if body in self.open:  # else its process is gone
            self.open.remove(body)
        if body.state in ("held", "unsure"):
            self.say(body, "its block has ended, and it is held")
        if outlived and not lost:
            self.say(body, "outlived a block around it, and its end said nothing")
        if lost:
            return
        known = (body.lock, body.fence)
        if keep and not body.outlives():
            self._keep[known] = max(self._keep[known], since + keep * 0.98 - SLACK)
        if body.fence < self._forgotten or body.waits or any(other.is_of(body) for other in body.path):
            return  # or it was handed over
        _, until = self._kept.get(body.lock, (0.0, 0.0))
        if self._keep[known] > until:
            self._kept[body.lock] = since, self._keep[known]

    def waits(self, lock: str, path: Path) -> list[Wait]:
        """Those that wait at the same gate as one that asks from here."""
        around = [body for body in path if body.lock == lock and not body.exited]
        return self.waiting.setdefault((lock, around[-1]), []) if around else []


class NestedCaller:
    """One actor, in threads or in tasks."""

    def __init__(self, actor: str, harness: Any, random: Random, nest: Nest, process: Process, expire: float) -> None:
        self.actor = actor
        self.over = False
        self._harness = harness
        self._random = random
        self._nest = nest
        self._expire = expire
        self._process = process
        self._package = process.program._modules["distlock_web"]
        self._number = 0
        #: One lock object for many blocks.
        self._objects = [self._package.lock(name, **self._options()) for name in nest.locks for _ in range(2)]

    def killed(self, stopped: bool = False) -> None:
        self._nest.killed(self._process)

    def _options(self) -> dict[str, Any]:
        random, expire = self._random, self._expire
        wait = random.choice((0, random.uniform(0, expire), 10 * expire))
        return {
            "prefix": "",
            "expire": expire * random.uniform(0.3, 1.0),
            "wait": wait,
            "renew": random.random() < 0.3,
            "hold_at_least": random.choice((0, 0, 0, random.uniform(0.1, 1.0))),
            "max_waiters": random.choice((None, 1, 2)) if wait else None,
            **random.choice(self._nest.shares),
        }

    def _body(self, lease: Any, path: Path, *, waits: bool = False) -> Body:
        self._number += 1
        return Body(f"{self.actor}.{self._number}", self._process, lease, path, waits=waits)

    def _refused(self, error: Exception) -> None:
        if not any(words in str(error) for words in REFUSALS):
            self._nest.wrong.append(f"{self.actor}: refused: {error}")

    def _unreachable(self, since: float) -> None:
        if self._nest.is_calm(since - AFTERMATH):
            self._nest.wrong.append(f"{self.actor} at {self._nest.clock():.6f}: unreachable, and nothing is at fault")

    async def _pause(self) -> None:
        await self._harness.sleep(self._random.uniform(0, self._expire / 8))

    async def rounds(self) -> None:
        while not self.over:
            await self._pause()
            if self._nest.tickets and self._random.random() < 0.7:
                await self._expected(self._take_on(self._nest.tickets.pop(0)))
            elif self._random.random() < 0.3:
                await self._end_all(await self._expected(self._dispatch((), 0)) or [])
            else:
                await self._end_all(await self._block((), 0))

    async def _expected(self, work: Any) -> Any:
        """Do it, or be refused, or hear that the lock is lost."""
        package, since = self._package, self._nest.clock()
        try:
            return await work
        except (package.LockBusy, package.LeaseLost, package.NotHeld):
            return None
        except package.BackendUnavailable:
            self._unreachable(since)
            return None
        except package.ConfigurationError as error:
            self._refused(error)
            return None

    async def _end_all(self, actors: list[Any]) -> None:
        for actor in actors:
            await actor.result()

    async def _block(self, path: Path, depth: int, name: str = "") -> list[Any]:
        """A block, and what is inside of it; those siblings that it has begun and not waited for."""
        random, nest, begun = self._random, self._nest, list[Any]()
        if random.random() < 0.5 and not name:
            the_lock = random.choice(self._objects)
            options: Any = the_lock._options
            name = the_lock._keys[0]
            asks, keep, most = options.expire, options.hold_at_least, options.max_waiters
        else:
            name, given = name or random.choice(nest.locks), self._options()
            the_lock = self._package.lock(name, **given)
            asks, keep, most = given["expire"], given["hold_at_least"], given["max_waiters"]
        since, queue = nest.clock(), nest.waits(name, path)
        before, wait = [each for each in queue if each.asked + SURELY < since], Wait(since)
        queue.append(wait)
        body: Body | None = None
        failed = outlived = False

        async def inside() -> None:
            nonlocal body, outlived
            async with self._harness.inside(the_lock) as lease:
                queue.remove(wait)
                remaining, entered = lease.remaining, nest.clock()
                body = self._body(lease, path)
                nest.enter(body)
                short = asks / 2 * 0.98 - SLACK - (entered - since)
                if lease.state == "held" and remaining < short and nest.is_calm(since):
                    nest.say(body, f"asked for a lease of {asks:.3f} s, and has {remaining:.3f}")
                stayed = [each for each in before if each.left is None or each.left > since + SLACK]
                if nest.quiet and body.above and most and entered > since + SURELY and len(stayed) >= most:
                    nest.say(body, f"{len(stayed)} waited, and it was let wait with max_waiters={most}")
                try:
                    await self._inside(body, depth, begun)
                finally:
                    outlived = body.ends()

        package = self._package
        try:
            await inside()
        except package.LeaseLost:
            failed = True
        except package.LockBusy:
            assert body is None
        except package.BackendUnavailable:
            self._unreachable(since)
        except package.ConfigurationError as error:
            self._refused(error)
        except BaseException:  # the end of its event loop
            failed = True
            raise
        finally:
            if wait in queue:
                queue.remove(wait)
            wait.left = nest.clock()
            if body is not None:
                nest.exit(body, since, keep, failed, outlived)
        return begun

    async def _inside(self, body: Body, depth: int, begun: list[Any]) -> None:
        """What the code of a block does; ``begun`` has those that it does not wait for."""
        random, nest, path = self._random, self._nest, (*body.path, body)
        for _ in range(random.choice((0, 1, 2, 3))):
            await self._pause()
            nest.look(body)
            does = random.random()
            if depth >= 3:
                continue
            if does < 0.25:
                begun += await self._block(path, depth + 1)
            elif does < 0.6:
                for _ in range(random.choice((1, 1, 2, 4))):
                    begun.append(self._harness.sibling(lambda: self._sibling(path, depth + 1)))
            elif does < 0.7:
                begun += await self._expected(self._dispatch(path, depth + 1)) or []
            elif does < 0.8:
                await self._stands_still(path)
            elif does < 0.85 and nest.shares == ({},) and not body.above:
                ticket = await self._expected(self._harness.detach(body.lease, self._expire))
                if ticket is not None:
                    nest.tickets.append(ticket)
                    body.waits = True
                    return
        if random.random() < 0.5:
            await self._end_all(begun)
            begun.clear()
        nest.look(body)

    async def _sibling(self, path: Path, depth: int) -> None:
        await self._pause()
        await self._end_all(await self._block(path, depth))

    async def _dispatch(self, path: Path, depth: int) -> list[Any]:
        """Leases that are taken by hand, and handed to workers."""
        random, name, workers = self._random, self._random.choice(self._nest.locks), list[Any]()
        earlier = list[Body]()
        given = {**self._options(), "max_waiters": None, "hold_at_least": 0}
        given["wait"] = random.choice((0, 0, self._expire))
        for _ in range(2):
            lease = await self._expected(self._harness.try_acquire(self._package.lock(name, **given)))
            if lease is None:
                continue
            taken = self._body(lease, path, waits=True)
            if any(other.is_of(taken) for other in earlier) and not any(body.is_of(taken) for body in path):
                self._nest.say(taken, "entered a lease in no block, by acquire()")
            earlier.append(taken)
            if random.random() < 0.3:  # a block of its own call chain, before or while it hands it on
                workers += await self._block((*path, taken), depth + 1, name)
            workers.append(self._harness.sibling(partial(self._work, taken, depth + 1)))
            if random.random() < 0.5:
                await self._pause()
            if random.random() < 0.3:
                workers += await self._block((*path, taken), depth + 1, name)
        if random.random() < 0.5:
            await self._end_all(workers)
            workers.clear()
        return workers

    async def _work(self, taken: Body, depth: int) -> None:
        await self._expected(self._enter(taken.lease, taken.path, depth, taken))
        if taken.state in ("held", "unsure"):  # a block of the call chain that took it was inside
            taken.exits = True
            await self._expected(self._harness.release(taken.lease))
            taken.exited = True

    async def _take_on(self, ticket: str) -> None:
        await self._enter(await self._harness.attach(ticket), (), 1)

    async def _enter(self, lease: Any, path: Path, depth: int, taken: Body | None = None) -> None:
        """``with lease:``, and what is inside of it."""
        nest, begun, body, since = self._nest, list[Any](), None, self._nest.clock()
        failed = outlived = False
        try:
            async with self._harness.inside(lease):
                if taken is not None:
                    taken.exits = taken.exited = True
                body = self._body(lease, path)
                nest.enter(body)
                try:
                    await self._inside(body, depth, begun)
                finally:
                    outlived = body.ends()
        except self._package.LeaseLost:
            failed = True
        except BaseException:  # the end of its event loop
            failed = True
            raise
        finally:
            if body is not None:
                nest.exit(body, since, 0.0, failed, outlived)
        await self._end_all(begun)

    async def _stands_still(self, path: Path) -> None:
        """A block, and a generator in it that has a block of the same lock object, and may outlive it."""
        the_lock = self._random.choice(self._objects)
        if self._harness.runtime is self._package.core.runtime.THREADS:
            self._expect(self._in_a_call, the_lock, path)
        else:
            await self._expected(self._begun_in_a_task(the_lock, path))

    def _expect(self, work: Callable[..., None], *args: Any) -> None:
        package, since = self._package, self._nest.clock()
        try:
            work(*args)
        except (package.LockBusy, package.LeaseLost, package.NotHeld):
            pass
        except package.BackendUnavailable:
            self._unreachable(since)
        except package.ConfigurationError as error:
            self._refused(error)

    def _in_a_call(self, the_lock: Any, path: Path) -> None:
        nest, seen = self._nest, list[Body]()
        since, failed, outlived = nest.clock(), False, False

        def rows(path: Path) -> Any:
            with the_lock as lease:
                seen.append(self._body(lease, path))
                nest.enter(seen[-1])
                yield

        try:
            with the_lock as lease:
                seen.append(self._body(lease, path))
                nest.enter(seen[0])
                steps = rows((*path, seen[0]))
                next(steps)
                to_its_end = self._random.random() < 0.5
                if to_its_end:
                    seen[1].exits = True
                    self._expect(lambda: next(steps, None))
                    nest.exit(seen[1], since, 0.0, True, False)
                nest.look(seen[0])
                outlived = seen[0].ends()
        except self._package.LeaseLost:
            failed = True
        finally:
            if seen:
                nest.exit(seen[0], since, 0.0, failed, outlived)
            if len(seen) > 1 and not seen[1].exited:
                nest.look(seen[1])
                seen[1].exits = True
                self._expect(steps.close)
                nest.exit(seen[1], since, 0.0, True, False)

    async def _begun_in_a_task(self, the_lock: Any, path: Path) -> None:
        nest, seen = self._nest, list[Body]()
        since, failed, outlived = nest.clock(), False, False

        async def events(path: Path) -> Any:
            async with the_lock as lease:
                seen.append(self._body(lease, path))
                nest.enter(seen[-1])
                yield

        async def begin(steps: Any) -> None:
            await anext(steps)

        try:
            async with the_lock as lease:
                seen.append(self._body(lease, path))
                nest.enter(seen[0])
                steps = events((*path, seen[0]))
                await self._harness.sibling(lambda: begin(steps)).result()
                seen[1].exits = True
                await self._expected(anext(steps, None))
                nest.exit(seen[1], since, 0.0, True, False)
                nest.look(seen[0])
                outlived = seen[0].ends()
        except self._package.LeaseLost:
            failed = True
        finally:
            if seen:
                nest.exit(seen[0], since, 0.0, failed, outlived)
            if len(seen) > 1 and not seen[1].exited:
                await self._expected(steps.aclose())
                nest.exit(seen[1], since, 0.0, True, False)
