"""Waiting: in order, for the time that was given, and without leaving anything behind (law 5)."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from distlock_web import LeaseLost, LockBusy, lock
from distlock_web.core.backend import Busy, Granted
from distlock_web.core.runtime import DICE, now

from ..fault_injector import FaultInjector
from ..harness import Harness
from .base import NAME, Cases, case, claim, needs, the_lock


class QueueCases(Cases):
    @needs("queue")
    @case
    async def test_first_come_first_served(self, harness: Harness) -> None:
        order: list[int] = []

        async def waiter(number: int) -> None:
            async with harness.inside(the_lock(wait=None)):
                order.append(number)

        async with harness.inside(the_lock()):
            actors = []
            for number in range(6):
                actors.append(harness.unrelated(partial(waiter, number)))
                await harness.waiters(NAME, number + 1)
        for actor in actors:
            await actor.result()
        assert order == [0, 1, 2, 3, 4, 5]
        assert await _nothing_left(harness)

    @needs("queue")
    @case
    async def test_a_newcomer_does_not_overtake_the_queue(self, harness: Harness) -> None:
        entered, leave = harness.event(), harness.event()

        async def waiter() -> None:
            async with harness.inside(the_lock(wait=None)):
                entered.set()
                await leave.wait()

        holder = await harness.acquire(the_lock())
        actor = harness.unrelated(waiter)
        await harness.waiters(NAME, 1)
        await harness.release(holder)
        # From the release on the lock belongs to the waiter, whether it has woken yet or not.
        assert await harness.unrelated(lambda: harness.try_acquire(the_lock())).result() is None
        leave.set()
        await entered.wait()
        await actor.result()

    @needs("bounded_queue")
    @case
    async def test_whoever_comes_when_max_waiters_wait_is_refused_at_once(self, harness: Harness) -> None:
        one_may_wait = the_lock(wait=None, max_waiters=1, expire=300)

        async def waiter() -> None:
            async with harness.inside(one_may_wait):
                pass

        async def refused() -> None:
            with pytest.raises(LockBusy, match="max_waiters=1") as caught:  # else it would wait for ever
                await harness.acquire(one_may_wait)
            assert caught.value.full  # a client is told so

        async with harness.inside(the_lock(expire=300)):
            actor = harness.unrelated(waiter)
            await harness.waiters(NAME, 1)
            await harness.unrelated(refused).result()
            await harness.waiters(NAME, 1)
        await actor.result()
        assert await _nothing_left(harness)

    @needs("bounded_queue")
    @case
    async def test_the_last_place_in_a_bounded_queue_is_given_once(self, harness: Harness) -> None:
        many = [claim()._replace(max_waiters=2) for _ in range(8)]

        async def ask(number: int) -> bool:
            answer = await harness.port.acquire(many[number], None)
            assert isinstance(answer, Busy)
            return not answer.full

        async with harness.inside(the_lock()):
            actors = [harness.unrelated(partial(ask, number)) for number in range(8)]
            joined = [await actor.result() for actor in actors]
            assert joined.count(True) == 2
            await harness.waiters(NAME, 2)
            for one, waits in zip(many, joined, strict=True):
                if waits:  # sent again, and asked again: it has its place
                    busy = await harness.port.acquire(one, None)
                    assert isinstance(busy, Busy)
                    assert not busy.full
                    busy = await harness.port.wait(one, busy._replace(recheck_after=0.01), None)
                    assert isinstance(busy, Busy)
                    assert not busy.full
            for one in many:
                await harness.port.cancel(one)
        assert await _nothing_left(harness)

    @case
    async def test_a_release_or_a_revocation_wakes_the_waiter_and_not_its_timer(self, harness: Harness) -> None:
        async def waiter() -> float:
            begun = now()
            async with harness.inside(the_lock(wait=None, expire=300)):
                return now() - begun

        for revoked in (False, True):
            holder = await harness.acquire(the_lock(expire=300))
            actor = harness.unrelated(waiter)
            await harness.waiters(NAME, 1)
            if revoked:
                assert await harness.port.revoke(NAME, holder.fence or 0)
                with pytest.raises(LeaseLost):
                    await harness.release(holder)
            else:
                await harness.release(holder)
            # The lease would have lasted 300 s, so would its sleep: Actor.result() gives up long before that.
            assert await actor.result() < 150

    @case
    async def test_waiting_ends_after_its_time_and_leaves_nothing(self, harness: Harness) -> None:
        begun = now()

        async def waiter() -> None:
            with pytest.raises(LockBusy):
                await harness.acquire(the_lock(wait=0.2))

        async with harness.inside(the_lock(expire=300)):
            await harness.unrelated(waiter).result()
            assert 0.2 <= now() - begun < 30
            line = await harness.shown(NAME)
            assert line.waiters == 0
        assert await _nothing_left(harness)

    @case
    async def test_waiters_that_give_up_at_the_hand_over_pass_the_lock_on(self, harness: Harness) -> None:
        """The release comes when their time ends: the loser of that race must not keep the lock for itself."""

        async def impatient() -> None:
            lease = await harness.try_acquire(the_lock(wait=0.05))
            if lease is not None:
                await harness.release(lease)

        for round_ in range(10):
            holder = await harness.acquire(the_lock(expire=300))
            actors = [harness.unrelated(impatient) for _ in range(2)]
            await harness.sleep(0.04 + round_ * 0.002)
            await harness.release(holder)
            for actor in actors:
                await actor.result()
            assert await _nothing_left(harness)

    @case
    async def test_the_requests_of_waiting_do_not_depend_on_its_length(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)

        async def waiter() -> None:
            async with harness.inside(the_lock(wait=None)):
                pass

        async with harness.inside(the_lock()):
            actor = harness.unrelated(waiter)
            await harness.sleep(self.ttl)
        await actor.result()
        assert injector.calls.count("acquire") == 2
        assert injector.calls.count("wait") <= 2
        assert injector.calls.count("cancel") == 0

    @case
    async def test_a_waiter_outlasts_many_leases_of_a_holder_that_renews(self, harness: Harness) -> None:
        async def waiter() -> int:
            async with harness.inside(the_lock(wait=None)) as lease:
                return lease.fence or 0

        async with harness.inside(the_lock(expire=self.kept, renew=True)) as lease:
            actor = harness.unrelated(waiter)
            await harness.sleep(2 * self.kept)
            lease.raise_if_lost()
            first = lease.fence or 0
        assert await actor.result() > first

    @case
    async def test_300_cancellations_at_random_moments_leave_nothing(self, tasks: Harness) -> None:
        seed = DICE.randrange(1_000_000)
        print(f"seed {seed}")
        await _cancel_many(tasks, random.Random(seed))


async def _cancel_many(harness: Harness, chance: random.Random) -> None:
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
    assert await harness.port.inspect() == []
    assert await _nothing_left(harness)


async def _nothing_left(harness: Harness) -> bool:
    """Whether the lock is free and its queue is empty: a claim that does not wait is granted only then."""
    probe = claim()
    answer = await harness.port.acquire(probe, 0)
    await harness.port.cancel(probe)
    return isinstance(answer, Granted)
