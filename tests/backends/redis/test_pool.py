"""The pool of connections that threads share: bounded, fair enough, and what goes wrong is said as what it is."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, configure
from distlock_web.backends.redis import RedisBackend
from distlock_web.core.backend import Claim
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from tests.support.callers import unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY


def backend(url: str, **options: Any) -> RedisBackend:
    configure({"default": {"LOCATION": url, "OPTIONS": options}})
    found = registry().store("default").backend
    assert isinstance(found, RedisBackend)
    return found


def test_a_pool_that_stays_exhausted_is_said_with_the_setting_to_change(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waited for once: it was asked again, and then for the cancellation of what had not been sent."""
    connections = backend(redis_url, max_connections=1, pool_timeout=0.05).server.pool
    connection = drive(connections.open(None))
    exhausted: list[float] = []
    wait = connections._wait

    def counted(self: Any, left: float) -> None:
        if left <= 0:
            exhausted.append(left)
        wait(left)

    monkeypatch.setattr(type(connections), "_wait", counted)
    with pytest.raises(
        BackendUnavailable, match=r"all 1 connections are in use \(OPTIONS: max_connections; pool_timeo"
    ):
        unrelated(KEY)
    assert len(exhausted) == 1
    connection.end()
    unrelated(KEY).release()


def test_a_health_check_replaces_a_dead_connection_before_it_is_used(
    redis_url: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    backend(redis_url, health_check_interval=0.01)
    unrelated(KEY).release()
    redis_client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(0.02)  # longer than the interval
    unrelated(KEY).release()


def test_in_a_url_its_time_is_text() -> None:
    url = "redis://127.0.0.1:1/0?pool_timeout="
    store = configure({"default": {"LOCATION": f"{url}2.5"}}).store("default")
    assert store.backend.server.address.pool_timeout == 2.5  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"pool_timeout.*'soon'"):
        _ = configure({"default": {"LOCATION": f"{url}soon"}}).store("default").backend


@pytest.mark.parametrize("connection", ["open", "new"])
def test_one_who_has_little_time_ends_it_for_nobody_else(proxy: Proxy, connection: str) -> None:
    """A renewal shortly before its deadline: each request was refused from then on, though the server was only slow."""
    found = backend(proxy.url, socket_timeout=3.0)
    lease = unrelated(KEY)
    port = found.renewal_port()
    if connection == "open":
        drive(port.inspect(["disLock:other"]))
    proxy.swallow()
    with pytest.raises(BackendUnavailable):
        drive(port.extend([Claim("disLock:lab", new_token("x" * 16), 1.0, "x")], 0.2))
    assert not found.server.outage.silent
    proxy.swallow(False)
    lease.release()
