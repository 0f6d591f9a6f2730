"""A project whose caches are on fakeredis, as fakeredis and django-redis document it: its locks are there, too."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client

from distlock_web import ConfigurationError, LockBusy, lock, once
from distlock_web.core.registry import registry
from distlock_web.django.stores import connection_pool
from tests.support.callers import Beside, unrelated
from tests.support.waiting import LONG, SOON, eventually

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"


@pytest.fixture(
    params=[
        (DJANGO, {"connection_class": fakeredis.FakeRedisConnection}),
        (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"connection_class": fakeredis.FakeRedisConnection}}),
        (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"connection_class": fakeredis.FakeConnection}}),  # once a class
    ],
    ids=["django", "django-redis", "django-redis, a function"],
)
def cache(request: pytest.FixtureRequest, settings: Any) -> Iterator[Any]:
    """The default cache, empty; the locks are on its server."""
    backend, options = request.param
    location = (
        f"redis://{request.node.name}:6379/0".replace("[", "-").replace("]", "").replace(" ", "").replace(",", "")
    )
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}}
    settings.DISTLOCK = {"default": {"CACHE": "default"}}
    yield caches["default"]
    registry().close()
    caches["default"].close()


pytestmark = [pytest.mark.filterwarnings("ignore:FakeConnection is deprecated"), pytest.mark.usefixtures("cache")]


def keys() -> set[str]:
    with fakeredis.FakeRedis(connection_pool=connection_pool("default")) as client:
        return {key.decode() for key in client.scan_iter()}


def test_a_lock_lies_beside_what_is_cached(cache: Any) -> None:
    cache.set("x", 1)
    with lock("a", expire=LONG) as lease:
        assert lease.name in keys()
        assert cache.get("x") == 1
        with pytest.raises(LockBusy):
            unrelated("a")
    assert lease.name not in keys()


def test_a_thread_that_waits_is_handed_the_lock(beside: Beside) -> None:
    with lock("a", expire=LONG):
        waits = beside(unrelated, "a", wait=LONG)
        eventually(lambda: "{disLock:a}:queue" in keys(), "it waits")
    waits.result(SOON).release()  # long before a lease would have ended


async def test_tasks_take_turns_and_a_thread_waits_with_them(beside: Beside) -> None:
    inside = [0]

    async def task() -> None:
        async with lock("a", expire=LONG, wait=LONG):
            inside[0] += 1
            assert inside == [1]
            await asyncio.sleep(0.01)
            inside[0] -= 1

    first = await asyncio.to_thread(unrelated, "a")
    waits = beside(unrelated, "a", wait=LONG)
    tasks = [asyncio.create_task(task()) for _ in range(3)]
    await asyncio.sleep(0.05)
    await asyncio.to_thread(first.release)
    await asyncio.to_thread(lambda: waits.result(SOON).release())
    await asyncio.wait_for(asyncio.gather(*tasks), SOON)


def test_once_is_done_once_and_a_limit_counts() -> None:
    done = []

    @once("pay:{n}", keep="1h")
    def pay(n: int) -> None:
        done.append(n)

    pay(7)
    pay(7)
    assert done == [7]
    leases = [unrelated("seats", limit=2) for _ in range(2)]
    with pytest.raises(LockBusy):
        unrelated("seats", limit=2)
    for lease in leases:
        lease.release()


@pytest.mark.django_db
def test_the_page_lists_it() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("ann", password="x"))
    with lock("order:7", expire=LONG):
        assert "order:7" in client.get("/admin/distlock_web/heldlock/").content.decode()


def test_what_fakeredis_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "distlock_web.backends.redis.transport.address.find_spec", lambda name: None if name == "lupa" else find(name)
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'fakeredis\[lua\]'"), lock("a"):
        pass
