"""Connections that died while they were idle, behind a firewall that forgot them: no server is silent for that."""

from __future__ import annotations

import pytest
import redis

from distlock_web import configure
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from tests.support.callers import unrelated
from tests.support.modes import in_both_modes
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY, NAME, left_behind, the_lock, warm_up
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

TIMEOUT = 1.0


@pytest.fixture
def firewall(proxy: Proxy) -> Proxy:
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": TIMEOUT}}})
    return proxy


@pytest.mark.timing
def test_a_lease_is_renewed_though_the_connection_for_renewals_is_dead(
    firewall: Proxy, redis_client: redis.Redis
) -> None:
    lease = unrelated(KEY, expire=4.0, renew=True)
    eventually(lambda: redis_client.pttl(NAME) < 3500, "it was renewed, and has aged")
    firewall.forget()
    end = now() + 8.0
    eventually(lambda: now() > end, "two leases have passed")
    lease.raise_if_lost()
    lease.release()


@pytest.mark.parametrize("interval", [0, 0.001])
def test_a_health_check_in_vain_is_no_silence_either(proxy: Proxy, interval: float) -> None:
    options = {"socket_timeout": TIMEOUT, "health_check_interval": interval}
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": options}})
    unrelated(KEY).release()
    proxy.forget()
    unrelated(KEY).release()


@in_both_modes
async def test_an_answer_that_takes_longer_than_half_of_the_time_out_is_heard(
    harness: Harness, proxy: Proxy, redis_client: redis.Redis
) -> None:
    """It is waited for while the server is asked on another connection."""
    harness.store = configure(
        {"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": 6.0}}}  # a busy machine has 2.7 s
    ).store("default")
    await warm_up(harness)
    proxy.delay = 3.3
    asked = len(proxy.asked)
    lease = await harness.acquire(the_lock())
    assert sum(NAME.encode() in request for request in proxy.asked[asked:]) == 1, "it was not asked twice"
    proxy.delay = 0.0
    await harness.release(lease)
    assert left_behind(redis_client) == {}
