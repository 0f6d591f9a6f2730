"""The pool of connections that threads share: bounded, fair enough, and what goes wrong is said as what it is."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, configure, lock
from distlock_web.backends.redis import RedisBackend
from distlock_web.core.backend import Claim
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from tests.support.callers import unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY
from tests.support.waiting import eventually


def backend(url: str, **options: Any) -> RedisBackend:
    configure({"default": {"LOCATION": url, "OPTIONS": options}})
    found = registry().store("default").backend
    assert isinstance(found, RedisBackend)
    return found


def test_many_threads_share_two_connections(redis_url: str, redis_client: redis.Redis) -> None:
    backend(redis_url, max_connections=2, pool_timeout=30)
    errors: list[BaseException] = []

    def connected() -> set[str]:
        return {client["id"] for client in redis_client.client_list(_type="normal")}

    def work(number: int) -> None:
        try:
            for _ in range(100):
                with lock(f"own:{number}", expire=30):
                    pass
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    others = connected()
    for worker in workers:
        worker.start()
    most = 0
    while any(worker.is_alive() for worker in workers):
        most = max(most, len(connected() - others))
    assert errors == []
    assert 1 <= most <= 2


def test_a_pool_that_stays_exhausted_is_said_with_the_setting_to_change(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waited for once: it was asked again, and then for the cancellation of what had not been sent."""
    connections = backend(redis_url, max_connections=1, pool_timeout=0.05).server.pool
    connection = drive(connections.open(None))
    opened: list[object] = []
    wait = type(connections)._open_or_wait

    def counted(self: Any, timeout: float | None) -> Any:
        opened.append(timeout)
        return wait(self, timeout)

    monkeypatch.setattr(type(connections), "_open_or_wait", counted)
    with pytest.raises(
        BackendUnavailable, match=r"all 1 connections are in use \(OPTIONS: max_connections; pool_timeo"
    ):
        unrelated(KEY)
    assert len(opened) == 1
    connection.end()
    unrelated(KEY).release()


def test_a_connection_that_another_thread_takes_first_is_waited_for(redis_url: str) -> None:
    """Idle when it was looked at, and gone when it was taken: the next one that becomes free."""
    connections = backend(redis_url, max_connections=1, pool_timeout=30).server.pool
    connection = drive(connections.open(None))

    class Snatched(deque[Any]):
        def __bool__(self) -> bool:
            return True

    connections.idle = Snatched()
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(contextvars.Context().run(drive, connections.open(None))))
    waiting.start()
    eventually(lambda: len(connections.waiting) == 1, "it waits")
    connection.end()
    waiting.join()
    assert got == [connection]
    connections.idle = deque()
    connection.end()


def test_a_connection_whose_thread_was_interrupted_anywhere_leaves_its_place(redis_url: str) -> None:
    """A time limit between taking a connection and using it leaked a place of the pool, until none was left."""
    connections = backend(redis_url, max_connections=1, pool_timeout=0.05).server.pool
    for _ in range(3):
        assert drive(connections.open(None)) is not None  # and nobody has it any more
    unrelated(KEY).release()


def test_a_connection_that_is_given_back_while_all_are_dropped_is_not_kept(redis_url: str) -> None:
    """It would lead to the server of before, a master that is none any more."""
    connections = backend(redis_url).server.pool
    connection = drive(connections.open(None))

    class DroppedBefore(deque[Any]):
        def append(self, item: Any) -> None:
            connections.drop()
            super().append(item)

    connections.idle = DroppedBefore()
    connection.end()
    assert not connections.idle
    assert connection not in connections._open


def test_a_health_check_replaces_a_dead_connection_before_it_is_used(
    redis_url: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    backend(redis_url, health_check_interval=0.01)
    unrelated(KEY).release()
    redis_client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(0.02)  # longer than the interval
    unrelated(KEY).release()


def test_a_health_check_that_is_interrupted_costs_no_connection(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's time limit in the middle of it leaked a place of the pool each time, until none was left."""
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"health_check_interval": 0.001, "max_connections": 1}}})

    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    with lock("a"):
        pass
    with monkeypatch.context() as limit:
        limit.setattr(redis.Connection, "check_health", interrupted)
        time.sleep(0.005)  # past the interval
        with pytest.raises(KeyboardInterrupt):
            lock("a").acquire()
    with lock("a"):
        pass


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
