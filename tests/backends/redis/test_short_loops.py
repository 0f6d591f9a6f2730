"""Event loops that live for one call: under WSGI each request of an async view has one, and opens no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import redis
from asgiref.sync import async_to_sync

from distlock_web import configure, lock
from distlock_web.backends.redis.transport.address import address
from tests.support.callers import unrelated
from tests.support.redis_lock import KEY
from tests.support.waiting import SOON


@pytest.fixture
def opened(redis_url: str, redis_client: redis.Redis) -> Callable[[], int]:
    """How many connections were opened since it was called last."""
    # One more is opened to ask for the answer that half of this time has not brought.
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"socket_timeout": SOON}}})
    before = 0

    def count() -> int:
        nonlocal before
        last, before = before, redis_client.info("stats")["total_connections_received"]
        return int(before - last)

    unrelated(KEY).release()
    count()
    return count


async def view(number: int) -> None:
    async with lock(f"view:{number}", expire=30):
        await asyncio.sleep(0)


def test_a_call_in_a_loop_of_its_own_opens_no_connection(opened: Callable[[], int]) -> None:
    """Each request of an ``async def`` view under WSGI opened one, and closed it."""
    for number in range(20):
        async_to_sync(view)(number)
    assert opened() == 0


def test_what_asyncio_runs_has_a_connection_of_its_own(opened: Callable[[], int]) -> None:
    """How long it lives is not known: it must not block for a server that hangs."""
    for number in range(3):
        asyncio.run(view(number))
    assert opened() == 3


def test_who_was_connecting_when_its_loop_was_closed_ends_quietly(redis_url: str) -> None:
    """A loop that is closed with tasks in it leaves them to the garbage collection, where nothing can be awaited."""
    store = configure({"default": {"LOCATION": redis_url}}).store("default")
    opening = address(store.config).aconnect()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        opening.send(None)

    loop.run_until_complete(begin())
    loop.close()
    opening.close()
