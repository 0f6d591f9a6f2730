"""Waiters that are stopped or cut off cost those behind them one lease in all, and get their turns when they go on."""

from __future__ import annotations

import pytest
import redis

from distlock_web import lock
from distlock_web.core.runtime import now
from tests.support.callers import Beside, unrelated
from tests.support.crowd import StartCrowd
from tests.support.redis_lock import KEY, NAME, left_behind, queued
from tests.support.waiting import LONG, SOON, eventually, fastest

pytestmark = pytest.mark.slow

LEASE, STOPPED = 1.0, 20
#: What the wait may take beyond its lease. The fastest of a few tries counts.
MARGIN = 0.2


@pytest.mark.alone
@pytest.mark.timing
@pytest.mark.parametrize("ends", ["by a release", "by expiry"])
def test_20_stopped_waiters_in_front_cost_one_lease_together(
    crowd: StartCrowd, redis_client: redis.Redis, beside: Beside, ends: str
) -> None:
    """Four leases, half of it with the lock free."""

    def measure() -> float:
        holder = unrelated(KEY, expire=LONG)
        stopped = crowd(count=STOPPED, expire=LEASE)
        queued(redis_client, KEY, STOPPED)
        waiting = beside(lock(KEY, expire=LEASE, wait=LONG).acquire)
        queued(redis_client, KEY, STOPPED + 1)
        stopped.stop()
        if ends == "by a release":
            holder.release()
            free = now()
        else:
            redis_client.pexpire(NAME, 50)
            free = now() + LEASE  # until then both sleep, who know of the long lease; none sleeps longer than its own
        lease = waiting.result(SOON)
        took = now() - free
        lease.release()
        stopped.resume()
        stopped.saw("released", STOPPED)
        eventually(lambda: left_behind(redis_client) == {}, "nothing is left")
        return took

    assert fastest(measure, LEASE + MARGIN) <= LEASE + MARGIN


def test_a_stopped_process_that_goes_on_does_not_lose_its_places(
    crowd: StartCrowd, redis_client: redis.Redis, beside: Beside
) -> None:
    """It was passed over once; then it stands in front again of those who came later."""
    holder = unrelated(KEY, expire=LONG)
    stopped = crowd(count=3, expire=LEASE)
    queued(redis_client, KEY, 3)
    waiting = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
    queued(redis_client, KEY, 4)
    stopped.stop()
    holder.release()
    second = waiting.result(SOON)
    late = [crowd(actor=f"late {number}") for number in range(2)]
    stopped.resume()
    queued(redis_client, KEY, 5)
    eventually(lambda: heads(redis_client), "the stopped process has its place in front again")
    second.release()
    for worker in late:
        worker.saw("released")
    assert stopped.saw("acquired", 3).at < min(worker.saw("acquired").at for worker in late)


def heads(client: redis.Redis) -> bool:
    """Whether the process with three waiters is the first in the queue."""
    queue = f"{{{NAME}}}:queue"
    (head,) = client.zrange(queue, 0, 0, withscores=False)
    return bool(client.zcard(f"{queue}:{head!s}") == 3)
