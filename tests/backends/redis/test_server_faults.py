"""A server that forgets, restarts, cuts connections or is unreachable: each costs a waiter one lease at most."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import redis

from distlock_web import LeaseLost, configure
from distlock_web.core.runtime import now
from distlock_web.testing.servers import RedisServer
from tests.support.callers import unrelated
from tests.support.lab import Lab
from tests.support.modes import modes
from tests.support.redis_lock import KEY, fence_of, left_behind
from tests.support.waiting import SLACK, eventually


@modes
def test_flushall_costs_a_waiter_one_lease(lab: Lab, redis_client: redis.Redis, mode: str) -> None:
    expire = 2.0
    holder = lab.start(mode=mode, hold=True, expire=expire, renew=True)
    first = holder.saw("acquired")
    waiter = lab.start(mode=mode, hold=True)
    waiter.saw("joined")
    flushed = now()
    redis_client.flushall()
    begun = waiter.saw("acquired")
    assert begun.at - flushed < expire + SLACK
    # The clock takes over from the forgotten fence.
    assert first.value is not None
    assert begun.value is not None
    assert begun.value > first.value
    holder.go()
    holder.saw("lost")
    assert fence_of(redis_client) == str(begun.value), "the release of the flushed lease freed the other's"
    waiter.go()
    assert [holder.join(), waiter.join()] == [0, 0]


def released(lab: Lab, times: int) -> bool:
    return lab.history.count("released") >= times


@pytest.mark.slow
def test_connections_killed_again_and_again(lab: Lab, redis_client: redis.Redis) -> None:
    expire = 2.0
    options = {"expire": expire, "rounds": 60, "section": 0.01, "renew": True}
    workers = lab.ready(*({"mode": mode, **options} for mode in ("threads", "asyncio") * 2))
    for worker in workers:
        worker.go()
    for worker in workers:
        worker.saw("acquired")
    for number in range(30):
        redis_client.client_kill_filter(_type=("pubsub", "normal")[number % 2], skipme=True)
        redis_client.script_flush()
        enough = lab.history.count("released") + 4
        eventually(partial(released, lab, enough), "they go on")
    assert [worker.join() for worker in workers] == [0] * 4
    assert lab.history.violations(counter=lab.counter) == []
    assert lab.counter == 240
    assert lab.history.count("gave_up") == 0
    assert max(lab.history.waits()) < expire + SLACK
    assert left_behind(redis_client) == {}


@modes
def test_a_server_that_crashes_and_comes_back_late(own_lab: tuple[Lab, RedisServer], mode: str) -> None:
    """Unreachable for less than the waiter's lease: it goes on waiting, and gets its turn."""
    lab, server = own_lab
    holder = lab.start(mode=mode, hold=True, expire=30)
    holder.saw("acquired")
    waiter = lab.start(mode=mode, expire=30)
    waiter.saw("joined")
    server.kill()
    killed = now()
    eventually(lambda: now() > killed + 1.0, "a second without a server")
    server.start()
    assert waiter.saw("acquired").at > 0
    assert waiter.join() == 0
    assert lab.history.count("gave_up") == 0


@pytest.mark.slow
def test_a_store_unreachable_for_longer_is_a_loss_at_the_deadline(make_redis: Callable[..., RedisServer]) -> None:
    server = make_redis()
    configure({"default": {"LOCATION": server.url, "OPTIONS": {"socket_timeout": 1.0}}})
    lease = unrelated(KEY, expire=3.0, renew=True)
    server.pause()
    assert lease.lost.wait(SLACK)
    assert lease.reason == "unreachable"
    server.resume()
    with pytest.raises(LeaseLost, match="did not answer until"):
        lease.release()
