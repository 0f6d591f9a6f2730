"""A lock that passes from hand to hand: nobody believes to have it who has not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.core.backend import Busy, Claim
from distlock_web.core.registry import Registry, registry
from distlock_web.core.runtime import THREADS, Process, drive, new_token, now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import held, queued
from tests.support.waiting import LONG, SOON


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["NOREPLICAS", "READONLY"])
def test_a_release_that_the_server_refuses_lets_nobody_in(
    make_redis: Callable[..., RedisServer], beside: Beside, refused: str
) -> None:
    """It was published before the first write: a waiter entered a lock that the server still gave to another."""
    server = make_redis()
    configure({"default": {"LOCATION": server.url}})
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        first = unrelated("a", expire=2)
        waiting = beside(lock("a", expire=LONG, wait=LONG).acquire)
        queued(client, "a")
        if refused == "NOREPLICAS":
            client.config_set("min-replicas-to-write", 1)
        else:
            client.replicaof("127.0.0.1", "1")
        with pytest.raises(BackendUnavailable, match=refused):
            first.release()
        client.config_set("min-replicas-to-write", 0)
        client.replicaof("NO", "ONE")
        lease = waiting.result(SOON)
        assert owner_of(client) == (scope_of(lease).holds[0].claim.token, str(lease.fence))
        lease.release()


@pytest.mark.usefixtures("redis_store")
def test_a_notification_of_a_hand_over_that_is_older_than_the_stores_last_word_grants_nothing(
    redis_client: redis.Redis,
) -> None:
    """A process that was stopped for longer than its lease read the notification of it afterwards, and entered."""
    seconds, micros = redis_client.time()
    holder = unrelated("a")
    assert holder.fence is not None
    port = registry().store("default").port(THREADS)
    claim = Claim("disLock:a", new_token(), LONG)
    answer = drive(port.acquire(claim, LONG))
    assert isinstance(answer, Busy)
    redis_client.publish(
        f"distlock:wake:{Process.ident}", f"{claim.token} {holder.fence - 1} {seconds * 1_000_000 + micros} disLock:a"
    )
    try:
        assert isinstance(drive(port.wait(claim, answer, 1.0)), Busy)
    finally:
        drive(port.cancel(claim))
    holder.raise_if_lost()
    holder.release()


@pytest.mark.usefixtures("redis_store")
def test_a_waiter_whose_place_was_evicted_has_the_lock_within_a_lease(
    redis_client: redis.Redis, beside: Beside
) -> None:
    holder = unrelated("a")
    waiting = beside(lock("a", expire=1, wait=LONG).acquire)
    queued(redis_client, "a")
    redis_client.delete(f"{{disLock:a}}:queue:{Process.ident}")
    holder.release()
    lease = waiting.result(SOON)
    assert owner_of(redis_client) == (scope_of(lease).holds[0].claim.token, str(lease.fence))
    lease.release()


def owner_of(client: redis.Redis) -> tuple[str, str]:
    lock = held(client, "disLock:a")
    assert lock is not None
    return lock["owner"], lock["fence"]


@pytest.mark.slow
@pytest.mark.usefixtures("redis_store")
def test_the_dead_in_front_of_a_waiter_cost_it_about_one_lease_together(
    redis_url: str, redis_client: redis.Redis
) -> None:
    """Each killed waiter ahead cost a second more: a worker that died with many threads stopped a lock for long."""
    ghosts = Registry({"default": {"LOCATION": redis_url}})
    unrelated("a", expire=1)  # killed, too: never released
    dead = "0" * 16
    for _ in range(16):
        claim = Claim("disLock:a", dead + new_token()[16:], 1.0, "x")
        assert isinstance(drive(ghosts.store("default").port(THREADS).acquire(claim, LONG)), Busy)
    ghosts.close()
    begun = now()
    with lock("a", expire=1, wait=LONG):
        assert now() - begun < 8.0
