"""Settings that change, stores on a cache's server, options at the wrong place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.cache import caches

from distlock_web import ConfigurationError, configure, current_lease, distributed_lockable, lock
from distlock_web.backends.redis.transport import listener, pool
from distlock_web.core.registry import registry
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import queued
from tests.support.waiting import SOON


def again(**changes: Any) -> None:
    """As a test's ``override_settings``, or an application that configures twice."""
    config = registry().store("default").config
    settings = {"BACKEND": config.backend, "LOCATION": config.location, **changes}
    configure({"default": {name: value for name, value in settings.items() if value}})


@pytest.mark.parametrize("changes", [{}, {"EXPIRE": 20}], ids=["the same", "others"])
def test_a_waiter_is_still_woken_when_the_stores_are_configured_anew(
    redis_store: str,
    redis_client: redis.Redis,
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """Its listener was closed under it: it slept on until the holder's lease had ended."""
    monkeypatch.setattr(listener, "IDLE_TIMEOUT", 0.1)  # of the store that nobody has any more
    holder = unrelated("a")
    waiting = beside(lock("a", wait=2 * SOON).acquire)
    queued(redis_client, "a")
    again(**changes)
    holder.release()
    waiting.result(SOON).release()


def test_a_lock_that_is_held_while_the_stores_are_configured_anew_is_held_to_its_end(store: str) -> None:
    """In memory its block ended with LeaseLost, for the locks of the process had been forgotten."""
    with lock("a") as lease:
        again()
        lease.extend()
    assert lease.state == "released"
    with lock("a"):
        pass


@pytest.fixture
def cache(settings: Any, redis_url: str) -> Iterator[Any]:
    def make(backend: str) -> None:
        settings.CACHES = {
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "redis": {"BACKEND": backend, "LOCATION": redis_url},
        }
        settings.DISTLOCK = {"default": {"BACKEND": "redis", "CACHE": "redis"}}

    yield make
    registry().close()
    caches["redis"].close()


@pytest.mark.parametrize("backend", ["django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"])
async def test_locks_on_a_caches_server_work_in_asyncio(cache: Any, backend: str) -> None:
    """The cache's pool has options of blocking connections, which asyncio's do not understand."""
    cache(backend)
    async with lock("a") as lease:
        assert lease.fence is not None


def test_a_health_check_that_is_interrupted_costs_no_connection(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's time limit in the middle of it leaked a place of the pool each time, until none was left."""
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"health_check_interval": 0.001, "max_connections": 1}}})
    ask = pool.Connection.ask

    def interrupted(self: pool.Connection, packed: bytes, *args: Any) -> Any:
        if b"PING" in packed:
            raise KeyboardInterrupt
        return ask(self, packed, *args)

    with lock("a"):
        pass
    with monkeypatch.context() as limit:
        limit.setattr(pool.Connection, "ask", interrupted)
        time.sleep(0.005)  # past the interval
        with pytest.raises(KeyboardInterrupt):
            lock("a").acquire()
    with lock("a"):
        pass


def test_a_call_without_its_lock_can_wait_for_a_loss_that_never_comes() -> None:
    """``lost.wait(2)`` returned at once: a loop around it took all of a processor."""
    configure({"default": {"LOCATION": "redis://127.0.0.1:1/0"}})

    @distributed_lockable(key="a", on_backend_error="open")
    def call() -> float:
        lease = current_lease()
        assert lease is not None
        begun = time.monotonic()
        assert lease.lost.wait(0.3) is False
        return time.monotonic() - begun

    assert call() >= 0.3


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_lock_above_a_static_or_class_method_is_refused_at_import(kind: Any) -> None:
    """It was accepted, and failed in the first call or ran a coroutine without its lock."""
    with pytest.raises(ConfigurationError, match=f"{kind.__name__}.*below|below.*{kind.__name__}"):

        class Shop:
            @distributed_lockable(key="a")
            @kind
            def pay(*args: object) -> None: ...


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_lock_below_a_static_or_class_method_works(kind: Any, memory_store: None) -> None:
    """What the refusal recommends."""

    class Shop:
        @kind
        @distributed_lockable(key="a")
        def pay(*args: object) -> bool:
            return current_lease() is not None

    assert Shop.pay()
    assert Shop().pay()
