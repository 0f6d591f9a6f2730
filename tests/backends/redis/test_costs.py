"""What a path costs in requests, counted by the server (law 4). Each cycle's commands: ``test_commands.py``."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from distlock_web import LockBusy, lock
from distlock_web.testing.harness import Harness
from tests.support.modes import in_both_modes
from tests.support.redis_lock import NAME, hold_for_another, the_lock, until_queued, warm_up


class Meter:
    """How many requests of ours the server has had since the last look."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._count()

    def _count(self) -> int:
        stats = self._client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))

    def peek(self) -> int:
        return self._count() - self._before

    def read(self) -> int:
        before, self._before = self._before, self._count()
        return self._before - before


async def all_scripts_known(harness: Harness, client: redis.Redis) -> None:
    """Every script has been sent once by its source, and there is a listener."""
    await warm_up(harness)
    held = await harness.acquire(lock("other", expire=30))
    with pytest.raises(LockBusy):
        await harness.unrelated(lambda: harness.acquire(lock("other", expire=30, wait=0.01))).result()
    await harness.extend(held)
    await harness.release(held)
    meter = Meter(client)
    async with harness.inside(lock("other", expire=30, renew=True)):

        async def renewed() -> bool:
            return meter.peek() >= 2  # the first renewal of a process is made at once, for it opens the connection

        await harness.until(renewed)


@in_both_modes
async def test_a_free_lock_costs_one_request_and_one_to_give_back(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    await all_scripts_known(harness, redis_client)
    paths: tuple[dict[str, Any], ...] = ({}, {"wait": 60}, {"wait": None}, {"renew": True}, {"hold_at_least": 0.01})
    for number, options in enumerate(paths):
        meter = Meter(redis_client)
        lease = await harness.acquire(the_lock(prefix=f"path{number}:", **options))
        assert meter.read() == 1
        await harness.release(lease)
        assert meter.read() == 1


@in_both_modes
async def test_a_wait_that_is_over_costs_three(harness: Harness, redis_store: str, redis_client: redis.Redis) -> None:
    """Join the queue, look once more, and leave nothing behind."""
    await all_scripts_known(harness, redis_client)
    held = await harness.acquire(the_lock())
    meter = Meter(redis_client)
    with pytest.raises(LockBusy):
        await harness.unrelated(lambda: harness.acquire(the_lock(wait=0.1))).result()
    assert meter.read() == 3
    await harness.release(held)


@pytest.mark.slow
@in_both_modes
async def test_waiting_costs_one_request_per_lease_of_the_holder(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    await all_scripts_known(harness, redis_client)
    hold_for_another(redis_client, 1500)
    meter = Meter(redis_client)
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=60)))
    await until_queued(harness, redis_client)
    redis_client.pexpire(NAME, 3000)  # the holder renews
    lease = await waiting.result()
    assert 3 <= meter.read() <= 4  # joined, asked after the first lease, and after the second, a tick too early perhaps
    await harness.release(lease)


def test_a_forgotten_script_costs_one_more(redis_store: str, redis_client: redis.Redis) -> None:
    the_lock().acquire().release()
    redis_client.script_flush()
    meter = Meter(redis_client)
    the_lock().acquire().release()
    assert meter.read() == 4
    the_lock().acquire().release()
    assert meter.read() == 2
