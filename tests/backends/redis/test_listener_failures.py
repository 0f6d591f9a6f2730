"""The listening: no failure of it, whatever its kind, costs the waiters after it their wake-ups."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pytest
import redis

from distlock_web import LockBusy, configure, lock
from distlock_web.backends.redis.transport import subscription
from distlock_web.backends.redis.transport.address import Address
from distlock_web.core.registry import registry
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, no_thread, unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import queued
from tests.support.waiting import SOON, eventually

pytestmark = pytest.mark.usefixtures("redis_store")


def wait_in_a_thread(key: str) -> None:
    with lock(key, wait=2 * SOON):
        pass


def wait_in_a_task(key: str) -> None:
    async def task() -> None:
        async with lock(key, wait=2 * SOON):
            pass

    asyncio.run(task())


modes = pytest.mark.parametrize("wait", [wait_in_a_thread, wait_in_a_task])


@modes
def test_a_foreign_message_on_the_channel_is_no_notification(
    redis_client: redis.Redis, beside: Beside, wait: Any
) -> None:
    """It ended the listening thread, or the request that read it, and nobody was woken afterwards."""
    ident = registry().store("default").ident
    for _ in range(2):
        holder = unrelated("a")
        waiting = beside(wait, "a")
        queued(redis_client, "a")
        for nonsense in ("hello you", "", "a b c", "x 1", b"\xff\xfe"):
            assert redis_client.publish(f"distlock:wake:{ident}", nonsense) == 1
        holder.release()
        waiting.result(SOON)


@modes
def test_an_unexpected_error_while_connecting_is_a_connection_that_failed(
    redis_client: redis.Redis, beside: Beside, monkeypatch: pytest.MonkeyPatch, wait: Any
) -> None:
    """A credential provider that failed once ended the listening thread for good."""
    connect, failures = Address.connect, [ValueError("a credential provider's")]

    def sometimes(self: Address, *patience: Any) -> Any:
        if failures and threading.current_thread().name == "distlock-listener":
            raise failures.pop()
        return connect(self, *patience)

    monkeypatch.setattr(Address, "connect", sometimes)
    for _ in range(2):
        holder = unrelated("a")
        waiting = beside(wait, "a")
        queued(redis_client, "a")
        holder.release()
        waiting.result(SOON)
    assert failures == []


@modes
def test_a_thread_that_cannot_be_started_is_started_by_the_next_waiter(
    redis_client: redis.Redis, beside: Beside, wait: Any
) -> None:
    """After one "can't start new thread" every later waiter slept as long as the holder's lease."""
    holder = unrelated("a")
    with no_thread("distlock-listener"), pytest.raises((RuntimeError, LockBusy)):
        beside(lock("a", wait=0.1).acquire).result(SOON)
    waiting = beside(wait, "a")
    queued(redis_client, "a")
    holder.release()
    waiting.result(SOON)


@pytest.mark.slow
def test_a_silent_connection_is_noticed_though_every_wait_is_short(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall dropped it, and nobody waited long enough to ask the server whether it was still there."""
    monkeypatch.setattr(subscription, "PING_AFTER", 0.5)
    with Proxy(redis_server.port) as proxy:
        ear = registry().store("default").backend.server.listener  # type: ignore[attr-defined]
        kwargs = {**ear._address.kwargs, "port": proxy.port, "socket_timeout": SOON}
        ear._address = dataclasses.replace(ear._address, kwargs=kwargs)
        holder = unrelated("a")

        def said(word: bytes) -> int:
            return sum(word in data for data in proxy.asked)

        def after_a_short_wait(word: bytes, times: int) -> bool:
            with pytest.raises(LockBusy):
                unrelated("a", wait=0.1)
            return said(word) >= times

        eventually(lambda: after_a_short_wait(b"SUBSCRIBE", 1), "it listens", SOON)
        proxy.swallow()
        eventually(lambda: after_a_short_wait(b"PING", 1), "the server is asked for a sign of life", SOON)
        proxy.swallow(False)
        eventually(lambda: after_a_short_wait(b"SUBSCRIBE", 2), "it listens on another connection", SOON)
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
