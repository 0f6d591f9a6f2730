"""Renewal under load: one thread, few requests, and no dependence on the pool that the requests share."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter

import pytest
import redis

from distlock_web import Lease, configure, lock
from distlock_web.core.runtime import now
from tests.support.callers import threads


def leases(count: int, expire: float) -> list[Lease]:
    context = contextvars.Context()
    return [context.run(lock(f"many:{number}", expire=expire, renew=True).acquire) for number in range(count)]


@pytest.mark.nightly
def test_1000_leases_live_on_while_the_pool_is_exhausted(redis_url: str, redis_client: redis.Redis) -> None:
    expire, seconds = 6.0, 16.0
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"max_connections": 2, "pool_timeout": 20}}})
    held = leases(1000, expire)
    over = threading.Event()

    def starve() -> None:  # four who want a connection all the time, where there are two
        while not over.is_set():
            with contextvars.Context().run(lock(f"busy:{threading.get_ident()}", expire=30, wait=0).acquire):
                pass

    starving = [threading.Thread(target=starve) for _ in range(4)]
    for thread in starving:
        thread.start()
    time.sleep(seconds / 2)
    over.set()
    for thread in starving:
        thread.join()
    before, cpu, begun = redis_client.info("commandstats"), time.process_time(), now()
    time.sleep(seconds / 2)
    elapsed, spent = now() - begun, time.process_time() - cpu
    after = redis_client.info("commandstats")
    assert Counter((lease.state, lease.reason) for lease in held) == {("held", None): 1000}
    assert threads("distlock-watchdog") == 1
    requests = sum(
        after.get(f"cmdstat_{name}", {"calls": 0})["calls"] - before.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("eval", "evalsha")
    )
    assert 2 <= requests <= 5 * elapsed
    assert spent < 0.1 * elapsed
    for lease in held:
        lease.release()


@pytest.mark.slow
def test_a_foreign_value_under_one_key_does_not_stop_the_renewal_of_the_others(
    redis_store: str, redis_client: redis.Redis
) -> None:
    lost, *others = leases(10, 2.0)
    redis_client.set(lost.name, "somebody's own")
    assert lost.lost.wait(30)
    assert lost.reason == "taken"
    time.sleep(2.5)
    assert {lease.state for lease in others} == {"held"}
    for lease in others:
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
