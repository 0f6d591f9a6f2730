"""settings.DISTLOCK: put in force, changed by a test, wrong, or on a Django cache's server."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from django.core.cache import caches
from django.test import override_settings

from distlock_web import ConfigurationError, lock
from distlock_web.core.registry import registry
from distlock_web.django.stores import configure_from_settings, connection_pool
from tests.support.stores.sentinel import SERVICE, SentinelSetup

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"


@pytest.fixture(autouse=True)
def _as_in_settings() -> None:
    configure_from_settings()


def test_the_settings_are_in_force_when_django_has_started() -> None:
    assert registry().store("default").config.backend == "memory"


def test_override_settings() -> None:
    with override_settings(DISTLOCK={"default": {"BACKEND": "memory", "PREFIX": "other:"}}), lock("a") as lease:
        assert lease.name == "other:a"
    with lock("a") as lease:
        assert lease.name == "disLock:a"


def test_a_setting_that_ends_with_its_test_leaves_nothing_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    with override_settings(), monkeypatch.context() as environment:
        del django_settings.DISTLOCK
        with override_settings(DISTLOCK={"default": {"BACKEND": "memory"}}), lock("a"):
            pass
        with pytest.raises(ConfigurationError, match="No store for locks"), lock("a"):
            pass
        environment.setenv("DISTLOCK_URL", "redis://127.0.0.1:1/0")
        assert registry().store("default").config.backend == "redis"


def test_a_wrong_setting_is_no_stack_trace_at_import_and_an_error_when_a_lock_is_used() -> None:
    with override_settings(DISTLOCK={"default": {"BACKEND": "memory", "EXPIRE": 0}}):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="EXPIRE"), lock("a"):
                pass
    with lock("a"):
        pass


@pytest.fixture
def cache(settings: Any, redis_url: str) -> Any:
    def make(backend: str, **options: Any) -> None:
        settings.CACHES = {
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "redis": {"BACKEND": backend, "LOCATION": redis_url, "OPTIONS": options},
        }
        settings.DISTLOCK = {"default": {"BACKEND": "redis", "CACHE": "redis"}}

    yield make
    registry().close()
    caches["redis"].close()


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (DJANGO, {}),
        (DJANGO_REDIS, {}),
        (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"decode_responses": True}}),
    ],
    ids=["django", "django-redis", "django-redis, decoding"],
)
def test_the_locks_live_on_the_server_of_a_cache(cache: Any, redis_url: str, backend: str, options: Any) -> None:
    cache(backend, **options)
    with lock("order:7", expire=10) as lease, redis.Redis.from_url(redis_url) as client:
        assert client.exists(lease.name)
    assert connection_pool("redis").connection_kwargs["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("alias", "message"), [("default", "LocMemCache"), ("nowhere", "not in CACHES")], ids=["not Redis", "not there"]
)
def test_a_cache_that_is_no_redis_is_refused(settings: Any, alias: str, message: str) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "redis", "CACHE": alias}}
    with pytest.raises(ConfigurationError, match=message), lock("a"):
        pass


def test_a_cache_on_several_servers_says_why_not(cache: Any) -> None:
    cache(DJANGO_REDIS, CLIENT_CLASS="django_redis.client.ShardClient")
    message = "ShardClient spreads its keys over several servers.*a LOCATION of its own"
    with pytest.raises(ConfigurationError, match=message), lock("a"):
        pass


def test_a_cache_whose_master_is_found_by_sentinel(cache: Any, settings: Any, sentinel_setup: SentinelSetup) -> None:
    cache(
        DJANGO_REDIS,
        CLIENT_CLASS="django_redis.client.SentinelClient",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=[("127.0.0.1", 1), ("127.0.0.1", sentinel_setup.sentinel.port)],
        SENTINEL_KWARGS={"socket_timeout": 5},
        CONNECTION_POOL_KWARGS={"decode_responses": True},
    )
    settings.CACHES = {**settings.CACHES, "redis": {**settings.CACHES["redis"], "LOCATION": f"redis://{SERVICE}/0"}}
    with lock("order:8", expire=10) as lease:
        assert sentinel_setup.clients[0].exists(lease.name)


@pytest.mark.parametrize("backend", [DJANGO, DJANGO_REDIS])
async def test_locks_on_a_caches_server_work_in_asyncio(cache: Any, backend: str) -> None:
    """The cache's pool has options of blocking connections, which asyncio's do not understand."""
    cache(backend)
    async with lock("a") as lease:
        assert lease.fence is not None
