"""The listening: it comes with the first wait, and no failure of it costs the waiters after it their wake-ups."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import LockBusy, configure, lock
from distlock_web.backends.redis.transport import listener, subscription
from distlock_web.backends.redis.transport.address import RedisAddress, address
from distlock_web.backends.redis.transport.subscription import Subscription
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, no_thread, threads, unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY, contend, left_behind, queued, waiters
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


modes = pytest.mark.parametrize("wait", [wait_in_a_thread, wait_in_a_task])


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
    """It ended the listening thread, or the request that read it, and nobody was woken afterwards."""

    def say_nonsense() -> None:
        for nonsense in ("hello you", "", "a b c", "x 1", b"\xff\xfe"):
            assert redis_client.publish(f"distlock:wake:{registry().store('default').ident}", nonsense) == 1

    for _ in range(2):
        is_woken(say_nonsense)


def test_an_unexpected_error_while_connecting_is_a_connection_that_failed(
    monkeypatch: pytest.MonkeyPatch, is_woken: Callable[..., None]
) -> None:
    """A credential provider that failed once ended the listening thread for good."""
    connect, failures = RedisAddress.connect, [ValueError("a credential provider's")]

    def sometimes(self: RedisAddress, *patience: Any) -> Any:
        if failures and threading.current_thread().name == "distlock-listener":
            raise failures.pop()
        return connect(self, *patience)

    monkeypatch.setattr(RedisAddress, "connect", sometimes)
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


def test_the_listener_ends_with_the_last_wait(
    redis_store: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "IDLE_TIMEOUT", 3.0)
    unrelated(KEY, wait=5).release()
    assert threads("distlock-listener") == 0, "a free lock needs nobody to listen"
    contend()
    assert threads("distlock-listener") == 1
    eventually(lambda: threads("distlock-listener") == 0, "the listener ends")
    eventually(lambda: redis_client.pubsub_channels("distlock:*") == [], "its connection is closed")
    contend()
    assert threads("distlock-listener") == 1, "a new wait has a new one"


# Who reads -----------------------------------------------------------------------------------------------------------


def name_of_reader(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In which thread each message was read."""
    read, readers = Subscription.read, []

    def note(self: Subscription, seconds: float) -> Any:
        found = read(self, seconds)
        if found:
            readers.append(threading.current_thread().name)
        return found

    monkeypatch.setattr(Subscription, "read", note)
    return readers


@pytest.mark.parametrize("is_woken", [wait_in_a_thread], indirect=True)
def test_a_thread_that_waits_alone_reads_for_itself(
    monkeypatch: pytest.MonkeyPatch, is_woken: Callable[..., None]
) -> None:
    """So a hand-over costs no switch of threads."""
    readers = name_of_reader(monkeypatch)
    for _ in range(3):
        is_woken()
    assert len(readers) == 3
    assert "distlock-listener" not in readers


@modes
@pytest.mark.parametrize("first", ["a", "b"])
def test_who_comes_while_a_thread_reads_is_heard_by_somebody_when_that_has_left(
    redis_client: redis.Redis, beside: Beside, monkeypatch: pytest.MonkeyPatch, wait: Any, first: str
) -> None:
    for name in ("SUPERVISE_EVERY", "POLL"):  # nobody looks again by himself
        monkeypatch.setattr(listener, name, LONG)
    holders = {key: unrelated(key) for key in ("a", "b", "c")}
    waiting = {"a": beside(wait_in_a_thread, "a")}
    queued(redis_client, "a")
    waiting["b"] = beside(wait, "b")
    queued(redis_client, "b")
    for key in (first, "b" if first == "a" else "a"):
        holders[key].release()
        waiting[key].result(SOON)
    waiting["c"] = beside(wait, "c")
    queued(redis_client, "c")
    holders["c"].release()
    waiting["c"].result(SOON)


def test_a_reader_that_was_interrupted_before_it_read_deafens_nobody(
    monkeypatch: pytest.MonkeyPatch, is_woken: Callable[..., None]
) -> None:
    """A signal's exception came between taking its turn and reading."""
    monkeypatch.setattr(listener, "READER_LOST", 0.2)
    ear = registry().store("default").backend.server.listener  # type: ignore[attr-defined]

    def lose() -> None:
        assert ear._subscription.turn.acquire(timeout=SOON)

    is_woken(lose)


class Limit(BaseException):
    """A worker's time limit."""


@pytest.mark.parametrize("whose", ["another's", "its own"])
def test_what_an_interrupted_reader_has_read_is_not_lost(
    redis_client: redis.Redis, beside: Beside, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The other waiter was handed its lock at once, and learned of it a lease later."""
    read, reading, go_on = Subscription.read, threading.Event(), threading.Event()

    def interrupt(self: Subscription, seconds: float) -> Any:
        if threading.current_thread().name != "distlock-listener" and not go_on.is_set():
            reading.set()
            assert go_on.wait(SOON)
            assert read(self, SOON)
            raise Limit
        return read(self, seconds)

    monkeypatch.setattr(Subscription, "read", interrupt)
    holders = {key: unrelated(key, expire=LONG) for key in ("mine", "other")}
    reader = beside(lock("mine", expire=LONG, wait=LONG).acquire)
    assert reading.wait(SOON)
    other = beside(lock("other", expire=LONG, wait=LONG).acquire)
    queued(redis_client, "other")
    first, second = ("mine", "other") if whose == "its own" else ("other", "mine")
    holders[first].release()
    go_on.set()
    with pytest.raises(Limit):
        reader.result(SOON)
    eventually(lambda: waiters(redis_client, "disLock:mine") == 0, "it waits no longer")
    if whose == "its own":
        eventually(lambda: left_behind(redis_client, "disLock:mine") == {}, "what it was handed is given on")
    holders[second].release()
    other.result(SOON).release()


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


def test_a_pause_of_the_process_is_no_silence_of_the_server(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that had stood still asked whether the server lives, and gave up its connection before the answer."""
    heard = Subscription(address(registry().store("default").config), "f" * 16)
    later = now() + 3 * subscription.PING_AFTER
    monkeypatch.setattr(subscription, "now", lambda: later)
    eventually(lambda: heard.read(0.0) is not None, "the server has said that it lives")
    heard.close()
