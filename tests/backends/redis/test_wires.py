"""What a thread writes and reads with: the kernel's time-outs where the socket is plain, else redis-py's own calls."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import configure, lock
from distlock_web.backends.redis.scripts.calls import command
from distlock_web.backends.redis.transport.driver import plain_socket_of
from distlock_web.backends.redis.transport.errors import TIMEOUTS, ErrorReply
from distlock_web.backends.redis.transport.wire import wire_of
from distlock_web.testing.servers import RedisServer
from tests.support.waiting import LONG, SOON


class Foreign(redis.Connection):
    """Somebody's own, which may send in its own way."""


def connected(url: str, connection_class: type = redis.Connection, **options: Any) -> Any:
    connection: Any = redis.ConnectionPool.from_url(url, connection_class=connection_class, **options).make_connection()
    connection.connect()
    return connection


@pytest.mark.parametrize(
    ("connection_class", "options", "plain"),
    [
        (redis.Connection, {}, sys.platform == "linux"),
        (redis.Connection, {"health_check_interval": 30}, False),
        (Foreign, {}, False),
    ],
)
def test_only_redis_py_s_own_classes_are_passed_over(
    redis_url: str, connection_class: type, options: dict[str, Any], plain: bool
) -> None:
    connection = connected(redis_url, connection_class, **options)
    assert (plain_socket_of(connection) is not None) is plain
    connection.disconnect()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's time-outs are for Linux alone")
@pytest.mark.parametrize("timer", ["ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"])
def test_beside_a_sampler_of_any_kind_the_kernel_s_time_outs_are_not_used(redis_url: str, timer: str) -> None:
    """Each signal begins them anew."""
    which = getattr(signal, timer)
    connection = connected(redis_url)
    before = signal.setitimer(which, LONG * LONG, LONG * LONG)
    try:
        assert plain_socket_of(connection) is None
    finally:
        signal.setitimer(which, *before)
    assert plain_socket_of(connection) is not None
    connection.disconnect()


def of_tls() -> Any:
    return ssl.create_default_context().wrap_socket(
        socket.socket(), server_hostname="localhost", do_handshake_on_connect=False
    )


def of_gevent() -> Any:
    return pytest.importorskip("gevent.socket").socket()


@pytest.mark.parametrize("make", [of_tls, of_gevent])
def test_a_socket_that_is_not_the_kernel_s_own_is_not_taken_for_one(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = redis.Connection()  # type: ignore[no-untyped-call]
    found = connection._sock = make()
    assert plain_socket_of(connection) is None
    if make is of_gevent:
        monkeypatch.setattr(socket, "socket", type(found))  # as its monkey does
    assert plain_socket_of(connection) is None
    connection.disconnect()  # type: ignore[no-untyped-call]
    found.close()


@pytest.mark.parametrize("connection_class", [redis.Connection, Foreign])
def test_an_answer_that_comes_later_is_read_on(redis_url: str, connection_class: type) -> None:
    connection = connected(redis_url, connection_class)
    wire = wire_of(connection, SOON)
    wire.write(command("BLPOP", "nothing", "0.3"))
    with pytest.raises(TIMEOUTS):
        wire.read(0.01)
    assert wire.read() is None
    wire.write(command("NOPE") + command("SETRANGE", "big", 1_000_000, "x") + command("GET", "big"))
    assert isinstance(wire.read(SOON), ErrorReply)
    assert wire.read() == len(wire.read(SOON)) == 1_000_001
    connection.disconnect()
    with pytest.raises((OSError, redis.RedisError)):
        wire.read()


@pytest.mark.parametrize("connection_class", [redis.Connection, Foreign])
def test_a_server_that_does_not_read_ends_the_writing(connection_class: type) -> None:
    here, there = socket.socketpair()
    connection = connection_class()
    connection._sock = here
    wire = wire_of(connection, 0.2)
    with pytest.raises(TIMEOUTS):
        for _ in range(100):
            wire.write(b"x" * 1_000_000)
    there.close()
    connection.disconnect()


def test_a_lock_over_a_unix_socket(make_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    make_redis("--unixsocket", str(path))
    configure({"default": {"LOCATION": f"unix://{path}"}})

    async def in_a_task() -> None:
        async with lock("a", wait=1) as lease:
            await lease.aextend()

    with lock("b", wait=1):
        asyncio.run(in_a_task())
    assert lock("a").try_acquire()


def test_fakeredis_waits_by_our_clock() -> None:
    """Of release 2.30 a time-out ended by the time of day: where a test had frozen it, never."""

    class FakeConnection:
        __module__ = "fakeredis"

        def can_read(self, timeout: float) -> bool:
            assert timeout == 0
            return False

    fake: Any = FakeConnection()
    with pytest.raises(TimeoutError):
        wire_of(fake, 10).read(0.01)
