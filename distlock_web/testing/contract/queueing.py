"""Waiting: in order, for the time that was given, and without leaving anything behind (law 5)."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from distlock_web import LockBusy, lock
from distlock_web.core.backend import Granted
from distlock_web.core.runtime import now

from ..colours import World
from ..tap import Tap
from .base import NAME, PREFIX, Cases, case, claim, the_lock


class QueueCases(Cases):
    @case
    async def test_first_come_first_served(self, world: World) -> None:
        order: list[int] = []

        async def waiter(number: int) -> None:
            async with world.inside(the_lock(wait=None)):
                order.append(number)

        async with world.inside(the_lock()):
            actors = []
            for number in range(6):
                actors.append(world.stranger(partial(waiter, number)))
                await world.waiters(NAME, number + 1)
        for actor in actors:
            await actor.result()
        assert order == [0, 1, 2, 3, 4, 5]
        assert await _nothing_left(world)

    @case
    async def test_a_newcomer_does_not_overtake_the_queue(self, world: World) -> None:
        entered, leave = world.event(), world.event()

        async def waiter() -> None:
            async with world.inside(the_lock(wait=None)):
                entered.set()
                await leave.wait()

        holder = await world.acquire(the_lock())
        actor = world.stranger(waiter)
        await world.waiters(NAME, 1)
        await world.release(holder)
        # From the release on the lock belongs to the waiter, whether it has woken yet or not.
        assert await world.stranger(lambda: world.try_acquire(the_lock())).result() is None
        leave.set()
        await entered.wait()
        await actor.result()

    @case
    async def test_a_release_wakes_the_waiter_and_not_its_timer(self, world: World) -> None:
        async def waiter() -> float:
            begun = now()
            async with world.inside(the_lock(wait=None, expire=300)):
                return now() - begun

        async with world.inside(the_lock(expire=300)):
            actor = world.stranger(waiter)
            await world.waiters(NAME, 1)
        # The lease would have lasted 300 s, so would its sleep: Actor.result() gives up long before that.
        assert await actor.result() < 150

    @case
    async def test_waiting_ends_after_its_time_and_leaves_nothing(self, world: World) -> None:
        begun = now()

        async def waiter() -> None:
            with pytest.raises(LockBusy):
                await world.acquire(the_lock(wait=0.2))

        async with world.inside(the_lock(expire=300)):
            await world.stranger(waiter).result()
            assert 0.2 <= now() - begun < 30
            line = await world.line(NAME)
            assert line is not None
            assert line.waiters == 0
        assert await _nothing_left(world)

    @case
    async def test_waiters_that_give_up_at_the_hand_over_pass_the_lock_on(self, world: World) -> None:
        """The release comes when their time ends: whoever loses that race must not keep the lock for itself."""

        async def impatient() -> None:
            lease = await world.try_acquire(the_lock(wait=0.05))
            if lease is not None:
                await world.release(lease)

        for round_ in range(10):
            holder = await world.acquire(the_lock(expire=300))
            actors = [world.stranger(impatient) for _ in range(2)]
            await world.sleep(0.04 + round_ * 0.002)
            await world.release(holder)
            for actor in actors:
                await actor.result()
            assert await _nothing_left(world)

    @case
    async def test_the_requests_of_waiting_do_not_depend_on_its_length(self, world: World) -> None:
        tap = Tap(world.store)

        async def waiter() -> None:
            async with world.inside(the_lock(wait=None)):
                pass

        async with world.inside(the_lock()):
            actor = world.stranger(waiter)
            await world.sleep(self.ttl)
        await actor.result()
        assert tap.calls.count("take") == 2
        assert tap.calls.count("wait") <= 2
        assert tap.calls.count("withdraw") == 0

    @case
    async def test_a_waiter_outlasts_many_leases_of_a_holder_that_renews(self, world: World) -> None:
        async def waiter() -> int:
            async with world.inside(the_lock(wait=None)) as lease:
                return lease.fence or 0

        async with world.inside(the_lock(expire=self.ttl, renew=True)) as lease:
            actor = world.stranger(waiter)
            await world.sleep(3 * self.ttl)
            lease.raise_if_lost()
            first = lease.fence or 0
        assert await actor.result() > first

    @case
    async def test_several_keys_are_taken_all_or_none(self, world: World) -> None:
        async with world.inside(lock("b", prefix=PREFIX)):

            async def second() -> None:
                with pytest.raises(LockBusy) as caught:
                    await world.acquire(lock(["c", "a", "b"], prefix=PREFIX, wait=0))
                assert caught.value.name == "test:b"

            await world.stranger(second).result()
            assert [line.name for line in await world.port.inspect()] == ["test:b"]
        async with world.inside(lock(["c", "a", "b", "a"], prefix=PREFIX, wait=0)) as lease:
            assert lease.names == ("test:a", "test:b", "test:c")
            assert set(lease.fences) == {"test:a", "test:b", "test:c"}
        assert await world.port.inspect() == []

    @case
    async def test_several_keys_in_opposite_order_do_not_deadlock(self, world: World) -> None:
        count = 0

        async def transfer(*keys: str) -> None:
            nonlocal count
            for _ in range(10):
                async with world.inside(lock(keys, prefix=PREFIX, wait=None)):
                    seen = count
                    await world.sleep(0)
                    count = seen + 1

        actors = [world.stranger(partial(transfer, *keys)) for keys in ("ab", "ba", "ab", "ba")]
        for actor in actors:
            await actor.result()
        assert count == 40

    @case
    async def test_keys_held_already_are_kept_while_a_further_one_is_awaited(self, world: World) -> None:
        holder = await world.acquire(lock("b", prefix=PREFIX, expire=300))

        async def both() -> None:
            async with world.inside(lock(["a", "b"], prefix=PREFIX, expire=self.ttl, wait=None)) as lease:
                lease.raise_if_lost()

        actor = world.stranger(both)
        await world.waiters("test:b", 1)
        end = now() + 3 * self.ttl
        while now() < end:
            assert await world.line("test:a") is not None
            await world.sleep(self.ttl / 8)
        await world.release(holder)
        await actor.result()

    @case
    async def test_300_cancellations_at_random_moments_leave_nothing(self, tasks: World) -> None:
        seed = random.randrange(1_000_000)
        print(f"seed {seed}")
        await _cancel_many(tasks, random.Random(seed))


async def _cancel_many(world: World, chance: random.Random) -> None:
    held = 0

    async def victim() -> None:
        nonlocal held
        async with lock(NAME, prefix="", expire=60, wait=chance.choice((0, 0.05, None))):
            held += 1
            assert held == 1
            try:
                await asyncio.sleep(chance.random() * 0.004)
            finally:
                held -= 1

    for _ in range(15):
        victims = [asyncio.create_task(victim()) for _ in range(20)]
        for doomed in chance.sample(victims, 20):
            await asyncio.sleep(chance.random() * 0.002)
            doomed.cancel()
        outcomes = await asyncio.gather(*victims, return_exceptions=True)
        unexpected = [
            outcome
            for outcome in outcomes
            if outcome is not None and not isinstance(outcome, (asyncio.CancelledError, LockBusy))
        ]
        assert unexpected == []
    assert await world.port.inspect() == []
    assert await _nothing_left(world)


async def _nothing_left(world: World) -> bool:
    """Whether the lock is free and nobody waits: a claim that does not wait is granted only then."""
    probe = claim()
    answer = await world.port.take(probe, 0)
    await world.port.withdraw(probe)
    return isinstance(answer, Granted)
