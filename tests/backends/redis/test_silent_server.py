"""A server that hangs: one request pays for knowing it, nothing stays behind of what was asked, and it ends at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.backends.redis.scripts import ACQUIRE, CANCEL, Script
from distlock_web.backends.redis.transport.exchange import Exchange
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, NAME, left_behind, queued, the_lock, waiters
from tests.support.waiting import LONG, SOON, eventually, fastest

pytestmark = pytest.mark.slow

TIMEOUT = 1.0


@pytest.fixture
def server(make_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """The default store is a server of this test alone, of which answers are expected within ``TIMEOUT``."""
    running = make_redis()
    configure({"default": {"LOCATION": running.url, "OPTIONS": {"socket_timeout": TIMEOUT}}})
    yield running
    running.resume()


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as connected:
        yield connected


async def refusal(harness: Harness, **options: Any) -> float:
    """The seconds after which an acquisition is refused."""
    begun = now()
    with pytest.raises(BackendUnavailable):
        await harness.acquire(the_lock(**options))
    return now() - begun


@pytest.mark.alone
@pytest.mark.timing
@in_both_modes
async def test_locks_work_again_as_soon_as_the_server_does(harness: Harness, server: RedisServer) -> None:
    await harness.release(await harness.acquire(the_lock()))

    async def outage() -> float:
        server.pause()
        await refusal(harness)
        server.resume()
        resumed = now()
        while True:
            try:
                await harness.release(await harness.acquire(the_lock()))
                return now() - resumed
            except BackendUnavailable:
                await harness.sleep(0.002)

    took = min([await outage() for _ in range(4)])
    assert took < TIMEOUT / 2


@in_both_modes
async def test_a_place_that_was_taken_for_nobody_is_given_up_when_the_server_answers_again(
    harness: Harness, server: RedisServer, client: redis.Redis
) -> None:
    """A late join was a ghost in the queue, that was granted a lease."""
    holder = await harness.acquire(the_lock(expire=LONG))
    await harness.unrelated(lambda: harness.try_acquire(the_lock(wait=0.01))).result()  # there is a listener

    async def ask() -> float:
        return await refusal(harness, wait=LONG, expire=LONG)

    server.pause()
    asking = harness.unrelated(ask)
    await asking.result()
    server.resume()
    backend: Any = harness.store.backend
    eventually(lambda: not backend.server.outage.silent, "it is known to answer again", SOON)
    eventually(lambda: waiters(client) == 0, "nobody waits", SOON)
    successor = harness.unrelated(lambda: harness.acquire(the_lock(wait=LONG)))
    await harness.waiters(NAME, 1)
    await harness.release(holder)
    await harness.release(await successor.result())
    await free_and_stays_free(harness, client)


def test_what_could_not_be_undone_is_undone_later(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Granted, and neither the answer nor the undoing came through: it is free as soon as something does."""
    unrelated(KEY).release()
    run, down = Exchange.run, True

    async def lossy(self: Exchange, script: Script, *args: Any) -> Any:
        if down and script is CANCEL:
            raise BackendUnavailable("The test has lost a request.")
        answer = await run(self, script, *args)
        if down and script is ACQUIRE:
            raise BackendUnavailable("The test has lost an answer.")
        return answer

    monkeypatch.setattr(Exchange, "run", lossy)
    with pytest.raises(BackendUnavailable):
        unrelated(KEY)
    assert left_behind(client) == {NAME: 1}
    down = False
    eventually(lambda: left_behind(client) == {}, "it is undone", SOON)


async def free_and_stays_free(harness: Harness, client: redis.Redis) -> None:
    """Seen free over a time in which a copy could come: nothing is postponed, and nothing is on its way."""
    backend: Any = harness.store.backend
    begun = now()
    while backend.server.outage._postponed or backend.server.outage.silent or left_behind(client):
        assert now() - begun < TIMEOUT + SOON
        await harness.sleep(0.01)
    free_after = now() - begun
    assert free_after < LONG / 4
    await harness.release(await harness.acquire(the_lock()))


def test_a_waiter_outlasts_an_outage(server: RedisServer, client: redis.Redis, beside: Beside) -> None:
    """It had its place before; the server stands still for a moment, and the holder gives back after it."""
    holder = unrelated(KEY)
    waiting = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
    queued(client, KEY)
    server.pause()
    with pytest.raises(BackendUnavailable):
        unrelated("other")
    server.resume()
    client.ping()
    eventually(lambda: not registry().store("default").backend.server.outage.silent, "it is heard again")  # type: ignore[attr-defined]
    holder.release()
    waiting.result(SOON).release()


@pytest.mark.timing
def test_many_who_ask_at_once_of_a_silent_server_wait_together(server: RedisServer, beside: Beside) -> None:
    """Not one after the other: the pool has room for two."""
    configure({"default": {"LOCATION": server.url, "OPTIONS": {"socket_timeout": TIMEOUT, "max_connections": 2}}})
    unrelated(KEY).release()

    def measure() -> float:
        server.pause()
        begun = now()
        asking = [beside(unrelated, f"key:{number}") for number in range(8)]
        for each in asking:
            with pytest.raises(BackendUnavailable):
                each.result(SOON)
        took = now() - begun
        server.resume()
        eventually(lambda: works(), "it answers")
        return took

    assert fastest(measure, 3 * TIMEOUT) <= 3 * TIMEOUT


def works() -> bool:
    try:
        unrelated("again").release()
    except BackendUnavailable:
        time.sleep(0.01)
        return False
    return True
