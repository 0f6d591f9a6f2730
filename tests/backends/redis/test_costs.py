"""What a path costs in requests, counted by the server (law 4). Each cycle's commands: ``test_commands.py``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from distlock_web import LockBusy, lock, once
from distlock_web.core.runtime import TASKS
from distlock_web.testing.harness import Harness
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, NAME, hold_for_another, the_lock, until_queued, warm_up


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


@in_both_modes
async def test_several_keys_cost_one_request_each(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    await all_scripts_known(harness, redis_client)
    meter = Meter(redis_client)
    lease = await harness.acquire(lock([f"{KEY}:{number}" for number in range(5)], expire=30, wait=60))
    assert meter.read() == 5
    await harness.extend(lease)
    assert meter.read() == 1
    await harness.release(lease)
    assert meter.read() == 5


def test_a_forgotten_script_costs_one_more(redis_store: str, redis_client: redis.Redis) -> None:
    the_lock().acquire().release()
    redis_client.script_flush()
    meter = Meter(redis_client)
    the_lock().acquire().release()
    assert meter.read() == 4
    the_lock().acquire().release()
    assert meter.read() == 2


class Commands:
    """How many commands the server has executed since the last look: scripts, and what they call."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._count()

    def _count(self) -> int:
        stats = self._client.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_info")

    def read(self) -> int:
        before, self._before = self._before, self._count()
        return self._before - before


@in_both_modes
async def test_a_contended_cycle_costs_two_requests_and_a_bounded_number_of_commands(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    """However many wait: what a section costs is the same for a queue of 4 and of 24."""
    await all_scripts_known(harness, redis_client)
    sections = 96

    async def contend(crowd: int) -> tuple[float, float]:
        holder = await harness.acquire(the_lock())

        async def visitor() -> None:
            for _ in range(sections // crowd):
                async with harness.inside(the_lock(wait=60)):
                    pass

        visitors = [harness.unrelated(visitor) for _ in range(crowd)]
        await until_queued(harness, redis_client, crowd)
        meter, commands = Meter(redis_client), Commands(redis_client)
        await harness.release(holder)
        for each in visitors:
            await each.result()
        return meter.read() / sections, commands.read() / sections

    few, many = await contend(4), await contend(24)
    for requests, _ in (few, many):
        assert requests <= 2.2
    assert many[1] < 1.5 * few[1]


@pytest.mark.slow
def test_a_holders_memory_of_many_names_is_nothing(redis_store: str, redis_client: redis.Redis) -> None:
    """A million order ids were 217 MB for an hour."""
    with lock("first"):
        pass
    before = redis_client.dbsize(), redis_client.info("memory")["used_memory"]
    for number in range(2000):
        with lock(f"order:{number}"):
            pass
    after = redis_client.dbsize(), redis_client.info("memory")["used_memory"]
    assert after[0] == before[0]
    assert after[1] - before[1] < 2000 * 20, "less than a tenth of what it was: buffers, not names"


@in_both_modes
async def test_what_is_done_once_costs_what_a_lock_does_and_to_be_told_so_one_request(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    await all_scripts_known(harness, redis_client)

    async def body() -> int:
        return 7

    def job(key: str) -> Any:
        @once(key=key, keep=60, result=True)
        def work() -> int:
            return 7

        return (once(key=key, keep=60, result=True)(body) if harness.runtime is TASKS else _awaitable(work))()

    await job("before")  # so that the release with a record is known
    meter = Meter(redis_client)
    assert await job("job") == 7
    assert meter.read() == 2
    assert await job("job") == 7
    assert meter.read() == 1


def _awaitable(function: Callable[[], int]) -> Callable[[], Coroutine[Any, Any, int]]:
    async def call() -> int:
        return function()

    return call
