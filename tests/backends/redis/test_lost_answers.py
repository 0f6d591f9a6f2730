"""Answers that are lost, cut in the middle, late, or never come: no orphan, no double grant, a bounded time."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis

from distlock_web import BackendUnavailable, Lease, LockBusy, configure
from distlock_web.core.runtime import now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.harness import AsyncHarness, Harness
from tests.support.modes import in_both_modes
from tests.support.proxy import Proxy
from tests.support.redis_lock import (
    fence_of,
    hold_for_another,
    left_behind,
    the_lock,
    until_queued,
    waiters,
    warm_up,
)
from tests.support.waiting import SLACK

#: How scripts are called: by name, or by source where the server does not know them.
EVAL = b"EVAL"


@pytest.fixture
def proxied(proxy: Proxy) -> Proxy:
    """The default store is behind this proxy; an answer that is late on a busy machine is waited for."""
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": 5}}})
    return proxy


@pytest.fixture
def impatient(proxy: Proxy) -> Proxy:
    """The same, for where no answer comes at all."""
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": 0.5}}})
    return proxy


@pytest.mark.parametrize("through", [0, 3])
@in_both_modes
async def test_a_grant_whose_answer_was_lost_is_heard_the_second_time(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis, through: int
) -> None:
    await warm_up(harness)
    proxied.lose_answer(EVAL, through)
    async with harness.inside(the_lock()) as lease:
        assert proxied.lost == 1
        assert fence_of(redis_client) == str(lease.fence)
    assert left_behind(redis_client) == {}


@in_both_modes
async def test_a_grant_that_is_never_heard_is_undone(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis
) -> None:
    await warm_up(harness)
    proxied.lose_answer(EVAL)
    proxied.lose_answer(EVAL)
    with pytest.raises(BackendUnavailable):
        await harness.acquire(the_lock())
    assert proxied.lost == 2
    assert redis_client.zscore("disLock:~held", "{fences}"), "the server had granted it"
    assert left_behind(redis_client) == {}


@pytest.mark.parametrize("through", [0, 2])
@in_both_modes
async def test_a_release_whose_answer_was_lost_is_no_loss(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis, through: int
) -> None:
    async with harness.inside(the_lock()) as lease:
        proxied.lose_answer(EVAL, through)
    assert proxied.lost == 1
    assert lease.state == "released"
    assert left_behind(redis_client) == {}


@in_both_modes
async def test_a_place_in_the_queue_whose_answer_was_lost_is_one_place(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis
) -> None:
    held = await harness.acquire(the_lock())

    async def waiter() -> Lease:
        proxied.lose_answer(EVAL)
        return await harness.acquire(the_lock(wait=60))

    waiting = harness.unrelated(waiter)
    await until_queued(harness, redis_client)
    assert proxied.lost == 1
    await harness.release(held)
    lease = await waiting.result()
    assert fence_of(redis_client) == str(lease.fence)
    await harness.release(lease)
    assert left_behind(redis_client) == {}


@pytest.mark.slow
@pytest.mark.parametrize("cut", [True, False])
@in_both_modes
async def test_a_hand_over_that_is_never_heard_costs_one_lease(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis, cut: bool
) -> None:
    """With the connection: known at once, and everybody asks. Without a trace: known when the old lease had ended."""
    expire = 2.0
    held = await harness.acquire(the_lock(expire=expire))
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=60)))
    await until_queued(harness, redis_client)
    proxied.lose_message(cut=cut)
    released = now()
    await harness.release(held)
    lease = await waiting.result()
    assert proxied.lost == 1
    assert now() - released < expire + SLACK
    assert fence_of(redis_client) == str(lease.fence)
    assert lease.remaining > 20
    await harness.release(lease)
    assert left_behind(redis_client) == {}


@pytest.mark.slow
@in_both_modes
async def test_a_waiter_that_gives_up_on_a_broken_connection_leaves_the_queue(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis
) -> None:
    held = await harness.acquire(the_lock())
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=2)))
    await until_queued(harness, redis_client)
    redis_client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(LockBusy):
        await waiting.result()
    assert waiters(redis_client) == 0
    await harness.release(held)
    assert left_behind(redis_client) == {}


@in_both_modes
async def test_a_subscription_that_breaks_at_its_start_is_made_again(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis
) -> None:
    held = await harness.acquire(the_lock())
    proxied.lose_answer(b"SUBSCRIBE")
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=60)))
    await until_queued(harness, redis_client)
    assert proxied.lost == 1
    await harness.release(held)
    await harness.release(await waiting.result())
    assert left_behind(redis_client) == {}


@in_both_modes
async def test_everything_cut_while_waiting(harness: Harness, proxied: Proxy, redis_client: redis.Redis) -> None:
    held = await harness.acquire(the_lock(expire=2, renew=True))
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=60)))
    await until_queued(harness, redis_client)
    proxied.cut()
    await harness.release(held)
    released = now()
    lease = await waiting.result()
    assert now() - released < 2 + SLACK
    await harness.release(lease)
    assert left_behind(redis_client) == {}


@pytest.mark.slow
@in_both_modes
async def test_a_slow_server_is_only_slow(harness: Harness, proxied: Proxy, redis_client: redis.Redis) -> None:
    proxied.delay = 0.1
    held = await harness.acquire(the_lock())
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=60)))
    await until_queued(harness, redis_client)
    await harness.release(held)
    await harness.release(await waiting.result())
    assert left_behind(redis_client) == {}


@in_both_modes
async def test_a_lease_counts_from_before_a_slow_answer(harness: Harness, proxied: Proxy) -> None:
    await warm_up(harness)
    proxied.delay = 0.3
    lease = await harness.acquire(the_lock(expire=2))
    assert lease.remaining < 1.7
    await harness.release(lease)


@pytest.mark.slow
@in_both_modes
async def test_a_server_that_never_answers_is_refused_in_a_bounded_time(harness: Harness, impatient: Proxy) -> None:
    begun = now()
    impatient.swallow()
    with pytest.raises(BackendUnavailable, match=r"Redis at 127\.0\.0\.1:\d+ does not answer"):
        await harness.acquire(the_lock(wait=60))
    assert now() - begun < 3 + SLACK  # two tries and the undo, each of them may connect: with a timeout of 0.5 s


@pytest.mark.slow
@in_both_modes
async def test_a_server_that_falls_silent_while_we_wait_is_given_up_after_a_lease(
    harness: Harness, impatient: Proxy, redis_client: redis.Redis
) -> None:
    hold_for_another(redis_client, 2000)
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=None, expire=1)))
    await until_queued(harness, redis_client)
    silent = now()
    impatient.swallow()
    with pytest.raises(BackendUnavailable):
        await waiting.result()
    assert now() - silent < 2 + 1 + 3 + SLACK  # the holder's lease, ours, and what the last two tries take


async def test_a_cancellation_in_the_turn_in_which_a_release_ends_is_not_swallowed(redis_store: str) -> None:
    """A TaskGroup or a timeout waits for the task to notice."""
    noticed = True

    async def visitor() -> None:
        nonlocal noticed
        async with the_lock() as lease:
            (hold,) = scope_of(lease).holds
            hold.on_end(cancel)  # called when the answer to the release has come
        noticed = False
        await asyncio.sleep(0)

    def cancel() -> None:
        task.cancel()

    task = asyncio.ensure_future(visitor())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert noticed


@pytest.mark.nightly
def test_300_cancellations_behind_a_slow_server_leave_nothing(proxied: Proxy, redis_client: redis.Redis) -> None:
    """At any moment: connecting, asking, queueing, being handed the lock, holding, giving back."""
    dice = random.Random()

    async def visitor() -> None:
        async with the_lock(wait=60):
            await asyncio.sleep(0.001)

    async def rush() -> None:
        async with the_lock():
            pass
        proxied.delay = 0.003
        for _ in range(15):
            visitors = [asyncio.ensure_future(visitor()) for _ in range(20)]
            for task in visitors:
                await asyncio.sleep(dice.random() * 0.01)
                dice.choice(visitors).cancel() if dice.random() < 0.3 else task.cancel()
            for task in visitors:
                task.cancel()
            ends = await asyncio.gather(*visitors, return_exceptions=True)
            assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
        assert left_behind(redis_client) == {}

    harness = AsyncHarness(None)  # type: ignore[arg-type]
    harness.run(rush())


@in_both_modes
async def test_one_who_does_not_wait_leaves_nothing_of_a_lost_question(harness: Harness, proxied: Proxy) -> None:
    """Asked again it was busy, and nobody undid the first: it was remembered for as long as the process lived."""
    await warm_up(harness)
    held = await harness.acquire(the_lock())

    async def refused() -> None:
        proxied.lose_answer(EVAL)
        with pytest.raises(LockBusy):
            await harness.acquire(the_lock())

    await harness.unrelated(refused).result()
    assert proxied.lost == 1
    assert not harness.store.backend.server.ambiguous  # type: ignore[attr-defined]
    await harness.release(held)
