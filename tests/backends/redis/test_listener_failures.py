"""The listening: no failure of it, whatever its kind, costs the waiters after it their wake-ups."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import LockBusy, configure, lock
from distlock_web.backends.redis.transport import subscription
from distlock_web.backends.redis.transport.address import Address, address
from distlock_web.backends.redis.transport.subscription import Subscription
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, no_thread, unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import queued
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.usefixtures("redis_store")


def wait_in_a_thread(key: str) -> None:
    with lock(key, expire=LONG, wait=2 * SOON):
        pass


def wait_in_a_task(key: str) -> None:
    async def task() -> None:
        async with lock(key, expire=LONG, wait=2 * SOON):
            pass

    asyncio.run(task())


@pytest.fixture(params=[wait_in_a_thread, wait_in_a_task])
def is_woken(request: pytest.FixtureRequest, redis_client: redis.Redis, beside: Beside) -> Callable[..., None]:
    """Somebody waits, and is woken by the release; ``meanwhile`` is done while it waits."""

    def check(meanwhile: Callable[[], None] = lambda: None) -> None:
        holder = unrelated("a")
        waiting = beside(request.param, "a")
        queued(redis_client, "a")
        meanwhile()
        holder.release()
        waiting.result(SOON)

    return check


def test_a_foreign_message_on_the_channel_is_no_notification(
    redis_client: redis.Redis, is_woken: Callable[..., None]
) -> None:
    """It ended the listening thread, and nobody was woken afterwards."""

    def say_nonsense() -> None:
        for nonsense in ("hello you", "", "a b c", "x 1", b"\xff\xfe"):
            assert redis_client.publish(f"distlock:wake:{registry().store('default').ident}", nonsense) == 1

    for _ in range(2):
        is_woken(say_nonsense)


def test_an_unexpected_error_while_connecting_is_a_connection_that_failed(
    monkeypatch: pytest.MonkeyPatch, is_woken: Callable[..., None]
) -> None:
    """A credential provider that failed once ended the listening thread for good."""
    connect, failures = Address.connect, [ValueError("a credential provider's")]

    def sometimes(self: Address, *patience: Any) -> Any:
        if failures and threading.current_thread().name == "distlock-listener":
            raise failures.pop()
        return connect(self, *patience)

    monkeypatch.setattr(Address, "connect", sometimes)
    for _ in range(2):
        is_woken()
    assert failures == []


def test_a_thread_that_cannot_be_started_is_started_by_the_next_waiter(
    beside: Beside, is_woken: Callable[..., None]
) -> None:
    """After one "can't start new thread" every later waiter slept as long as the holder's lease."""
    holder = unrelated("a")
    with no_thread("distlock-listener"), pytest.raises((RuntimeError, LockBusy)):
        beside(lock("a", wait=0.1).acquire).result(SOON)
    holder.release()
    is_woken()


@pytest.mark.slow
def test_a_silent_connection_is_noticed(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall dropped it, and nobody was ever woken again."""
    monkeypatch.setattr(subscription, "PING_AFTER", 0.5)
    with Proxy(redis_server.port) as proxy:
        ear = registry().store("default").backend.server.listener  # type: ignore[attr-defined]
        kwargs = {**ear._address.kwargs, "port": proxy.port, "socket_timeout": SOON}
        ear._address = dataclasses.replace(ear._address, kwargs=kwargs)
        holder = unrelated("a")
        with pytest.raises(LockBusy):
            unrelated("a", wait=0.1)

        def said(word: bytes) -> int:
            return sum(word in data for data in proxy.asked)

        assert said(b"SUBSCRIBE") == 1
        proxy.forget()
        eventually(lambda: said(b"PING"), "the server is asked for a sign of life", SOON)
        with pytest.raises(LockBusy):
            unrelated("a", wait=2.0)
        assert said(b"SUBSCRIBE") == 2, "it listens on another connection"
        holder.release()
        registry().close()


@pytest.mark.slow
def test_health_checks_do_not_break_the_listening_connection(
    redis_url: str, beside: Beside, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py read what was published meanwhile, or our own PING's answer, as that of its own PING."""
    monkeypatch.setattr(subscription, "PING_AFTER", 0.2)
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"health_check_interval": 0.1}}})
    ear = registry().store("default").backend.server.listener  # type: ignore[attr-defined]
    holder = unrelated("a")
    waiting = beside(wait_in_a_thread, "a")
    queued(redis_client, "a")
    heard = ear._subscription._heard
    eventually(lambda: ear._subscription._heard > heard + 1, "the server has been asked for a sign of life", SOON)
    assert ear._connections == 1
    holder.release()
    waiting.result(SOON)


def test_a_pause_of_the_process_is_no_silence_of_the_server(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that had stood still asked whether the server lives, and gave up its connection before the answer."""
    heard = Subscription(address(registry().store("default").config), "f" * 16)
    later = now() + 3 * subscription.PING_AFTER
    monkeypatch.setattr(subscription, "now", lambda: later)
    eventually(lambda: heard.read(0.0) is not None, "the server has said that it lives")
    heard.close()
