"""Clients that go away from asynchronous views: waiting in the queue, at work, streaming; over a Redis that is slow."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from distlock_web import configure, lock
from distlock_web.testing.servers import RedisServer
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.web_servers import Client, Server, is_free, the_lock

Serve = Callable[..., Server]
Seen = Callable[[], list[str]]

pytestmark = pytest.mark.timeout(180)

CLIENTS = 100


@pytest.fixture(scope="module")
def slow_way(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


def test_a_cancelled_view_gives_its_lock_back_once(serve: Serve, seen: Seen, slow_way: Proxy) -> None:
    server = serve("uvicorn", slow_way.url)
    client = Client(server, "/until-cancelled/")
    eventually(seen, "the view is at work")
    assert the_lock() is not None
    del slow_way.asked[:]
    slow_way.delay = 0.3  # so that the release is still on its way when everything else of the request is over
    try:
        client.reset()
        eventually(is_free, "the lock is free", 30)
        eventually(lambda: seen()[-1] == "ended r-1 1", "the view has ended")
    finally:
        slow_way.delay = 0.0
    assert sum(b"EVALSHA" in asked for asked in slow_way.asked) == 1


async def test_a_cancelled_release_is_finished(redis_url: str, slow_way: Proxy) -> None:
    """Also if the connection is gone, so that more than one answer has to come before the release is even sent."""
    configure({"default": {"LOCATION": redis_url}, "slow": {"LOCATION": slow_way.url}})
    inside, gone = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with lock("export", expire=60, store="slow"):
            inside.set()
            await gone.wait()

    task = asyncio.create_task(hold())
    await inside.wait()
    await asyncio.to_thread(slow_way.cut)
    slow_way.delay = 0.1
    try:
        gone.set()
        cancelled = 0
        while not task.done():
            cancelled += task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled > 1  # it was cancelled all the time
        assert is_free()
    finally:
        slow_way.delay = 0.0


def test_a_client_that_leaves_the_queue_is_not_waited_for(serve: Serve, redis_url: str) -> None:
    server = serve("uvicorn")
    with lock("export", expire=60):
        clients = [Client(server, "/work/", request_id=f"r-{number}") for number in range(3)]
        eventually(lambda: waiters() == 3, "three are waiting")
        clients[0].reset()
        clients[1].close()
        eventually(lambda: waiters() == 1, "one is waiting")
    assert clients[2].read_all() > 0
    assert b"200 OK" in clients[2].head
    eventually(is_free, "the lock is free", 30)


@pytest.mark.parametrize("delay", [0.0, 0.02])
@pytest.mark.parametrize("path", ["/work/", "/stream/"])
def test_clients_that_go_away_at_random_leave_nothing(
    serve: Serve, slow_way: Proxy, redis_url: str, path: str, delay: float
) -> None:
    server = serve("uvicorn", slow_way.url)
    slow_way.delay = delay

    def visit(number: int) -> None:
        dice = random.Random(number)
        client = Client(server, path, request_id=f"r-{number}")
        threading.Event().wait(dice.random())
        (client.reset if dice.random() < 0.5 else client.close)()

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(CLIENTS)]
    try:
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join()
        eventually(lambda: is_free() and nobody_waits(redis_url), "no lock and no place in a queue is left", 50)
    finally:
        slow_way.delay = 0.0
    # On a busy machine the slow way was an outage for it, which lasts a moment longer.
    eventually(lambda: answers_ok(server, path), "a last one is served")
    eventually(lambda: is_free() and nobody_waits(redis_url), "nothing is left")


def answers_ok(server: Server, path: str) -> bool:
    client = Client(server, path)
    return client.read_all() > 0 and b"200 OK" in client.head


def waiters() -> int:
    held = the_lock()
    return held.waiters if held else 0


def nobody_waits(url: str) -> bool:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        left: set[str] = set(client.keys("*"))
    return not {name for name in left if ":queue" in name}
