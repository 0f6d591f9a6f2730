"""Renewal under load: one thread, few requests, and no dependence on the pool that the requests share."""

from __future__ import annotations

import time

import pytest
import redis

from distlock_web import configure, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, now
from tests.support.callers import threads, unrelated


@pytest.mark.timing
@pytest.mark.slow
def test_leases_are_renewed_together_while_the_pool_is_exhausted(redis_url: str, redis_client: redis.Redis) -> None:
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"max_connections": 1, "pool_timeout": 0}}})
    leases = [unrelated(f"many:{number}", expire=3.0, renew=True) for number in range(100)]
    pool = registry().store("default").backend.server.pool  # type: ignore[attr-defined]
    taken = drive(pool.open(None))
    before, begun = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"], now()
    time.sleep(5.0)
    requests = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert {lease.state for lease in leases} == {"held"}
    assert threads("distlock-watchdog") == 1
    assert 2 <= requests <= 5 * (now() - begun)
    taken.end()
    for lease in leases:
        lease.release()


@pytest.mark.slow
def test_a_lease_of_very_many_names_is_extended_in_batches(redis_store: str, redis_client: redis.Redis) -> None:
    """Lua's stack is bounded: in one script the answer was an error, and the leases were longer already."""
    lease = lock([f"many:{number}" for number in range(4_100)], expire=600).acquire()
    before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    lease.extend(1_000)
    assert lease.remaining > 900
    assert all(redis_client.ttl(f"disLock:many:{number}") > 900 for number in (0, 499, 500, 4_099))
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 4_100 / 100  # 10, and repeats
    lease.release()
