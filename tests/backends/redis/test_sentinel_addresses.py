"""How settings name sentinels, and sentinels that are down, hang, do not know, or do not let us in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, configure, lock
from distlock_web.backends.redis import sentinel
from distlock_web.backends.redis.sentinel import SentinelAddress, sentinel_address
from distlock_web.backends.redis.transport.address import RedisAddress
from distlock_web.core.config import parse
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer, free_port
from tests.support.modes import in_both_modes
from tests.support.redis_lock import refused, the_lock
from tests.support.stores.sentinel import SERVICE, FakeSentinel, SentinelServer, SentinelSetup

# Settings -----------------------------------------------------------------------------------------------------------


def found(**settings: Any) -> SentinelAddress:
    address = sentinel_address(parse({"default": settings})["default"])
    assert address is not None
    return address


def test_what_a_url_says() -> None:
    address = found(LOCATION="redis+sentinel://u:p%40@a,b:1,[::1]:2/shop/3?socket_timeout=2")
    assert address.service_name == "shop"
    places = [(each.kwargs["host"], each.kwargs["port"]) for each in address.sentinels]
    assert places == [("a", 26379), ("b", 1), ("::1", 2)]
    named = {name: address.kwargs[name] for name in ("username", "password", "db", "socket_timeout")}
    assert named == {"username": "u", "password": "p@", "db": 3, "socket_timeout": 2.0}
    assert "password" not in address.sentinels[0].kwargs, "it is the master's"
    assert address.sentinels[0].kwargs["socket_timeout"] == pytest.approx(1 / 3), "together as long as one server"


def test_with_tls_the_sentinels_have_it_too_unless_told_otherwise() -> None:
    url = "rediss+sentinel://a/shop"
    address = found(LOCATION=url, OPTIONS={"ssl_check_hostname": False, "sentinel_kwargs": {"password": "s"}})
    (one,) = address.sentinels
    assert one.connection_class is address.connection_class
    assert (one.kwargs["ssl_check_hostname"], one.kwargs["password"]) == (False, "s")
    (plain,) = found(LOCATION=url, OPTIONS={"sentinel_kwargs": {"ssl": False}}).sentinels
    assert plain.connection_class is not address.connection_class


def test_a_connection_has_its_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step had all of it: a renewal was at its end before the second sentinel had named the right master."""
    address, moment, tried = found(LOCATION="redis+sentinel://a,b/shop"), [100.0], list[tuple[str, float]]()

    def connect(self: RedisAddress, timeout: float | None = None) -> Any:
        assert timeout is not None
        tried.append((self.kwargs["host"], timeout))
        if self.kwargs["host"] == "stale":
            moment[0] += timeout
            raise redis.TimeoutError
        return self.kwargs["host"]

    async def ask(connection: Any, *words: str) -> Any:
        if words[0] == "SENTINEL":
            return [b"stale" if connection == "a" else b"right", b"6379"]
        return [b"role", b"master"]

    async def close(connection: Any) -> None: ...

    monkeypatch.setattr(RedisAddress, "connect", connect)
    monkeypatch.setattr(sentinel, "_ask", ask)
    monkeypatch.setattr(sentinel, "_close", close)
    monkeypatch.setattr(sentinel, "now", lambda: moment[0])
    assert str(address.connect(0.4)) == "right"
    assert [host for host, _ in tried] == ["a", "stale", "b", "right"]
    assert [seconds for _, seconds in tried] == pytest.approx([0.4, 0.2, 0.2, 0.1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"LOCATION": "redis+sentinel://a"}, r"LOCATION.* names no master; it has to be such as redis\+sentinel://"),
        ({"LOCATION": "redis+sentinel:///shop"}, "LOCATION.* names no sentinel"),
        ({"LOCATION": "redis+sentinel://a:99999/shop"}, "names the sentinel 'a:99999'"),
        ({"LOCATION": "redis+sentinel://a,,b/shop"}, "names the sentinel ''"),
        ({"LOCATION": "redis://a", "OPTIONS": {"sentinel_kwargs": {}}}, "sentinel_kwargs, which is for"),
        ({"LOCATION": "redis+sentinel://a/x", "OPTIONS": {"sentinel_kwargs": 3}}, "sentinel_kwargs.* is of type int"),
        ({"LOCATION": "redis+sentinel://a/x", "OPTIONS": {"sentinel_kwargs": [("password", "S3cret")]}}, "type list"),
        ({"LOCATION": "redis+sentinel://a/x", "OPTIONS": {"sentinel_kwargs": {"passwort": 1}}}, "mean 'password'"),
        ({"LOCATION": "redis+sentinel://a/x", "OPTIONS": {"sentinel_kwarg": {}}}, "Did you mean 'sentinel_kwargs'"),
    ],
)
def test_what_cannot_be_right_is_refused(settings: dict[str, Any], message: str) -> None:
    configure({"default": settings})
    with pytest.raises(ConfigurationError, match=message) as caught, lock("a"):
        pass
    assert "S3cret" not in str(caught.value)


# Sentinels ----------------------------------------------------------------------------------------------------------


def at(*ports: int, name: str = SERVICE) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{name}/0"


@contextmanager
def hanging() -> Iterator[int]:
    """A port where connections are accepted and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


@in_both_modes
async def test_no_sentinel_answers(harness: Harness) -> None:
    with hanging() as silent:
        words = ("no sentinel answers", "127.0.0.1:1: Error 111", f"127.0.0.1:{silent}: Timeout")
        await refused(harness, at(1, silent), BackendUnavailable, *words)


@in_both_modes
async def test_one_that_answers_is_enough_and_is_asked_first_from_then_on(
    harness: Harness, sentinel_setup: SentinelSetup
) -> None:
    with hanging() as silent:
        url = at(1, silent, sentinel_setup.sentinel.port)
        options = {"socket_connect_timeout": 4.5}  # a third of it for each: also for the one that answers, and is slow
        harness.store = configure({"default": {"LOCATION": url, "OPTIONS": options}}).store("default")
        await harness.release(await harness.acquire(the_lock()))
        harness.store.close()
        before = now()
        await harness.release(await harness.acquire(the_lock()))
        address: Any = harness.store.backend.server.address  # type: ignore[attr-defined]
        share = address.sentinels[0].kwargs["socket_timeout"]
        assert now() - before < share, "the one that hangs was asked again"


@in_both_modes
async def test_a_name_that_the_sentinels_do_not_know(harness: Harness, sentinel_setup: SentinelSetup) -> None:
    port = sentinel_setup.sentinel.port
    await refused(harness, at(1, port, name="other"), ConfigurationError, f":{port} knows no master 'other'")


@in_both_modes
async def test_what_is_no_sentinel(harness: Harness, redis_server: RedisServer) -> None:
    await refused(harness, at(redis_server.port), ConfigurationError, f":{redis_server.port} is no sentinel")


@in_both_modes
@pytest.mark.usefixtures("redis_store")
async def test_a_sentinel_with_a_password(harness: Harness, redis_server: RedisServer) -> None:
    with SentinelServer(redis_server.port, "--requirepass", "secret") as sentinel:
        url = at(sentinel.port)
        await refused(harness, url, ConfigurationError, "does not let us in", "sentinel_kwargs")
        wrong = {"sentinel_kwargs": {"password": "secret?"}}
        await refused(harness, url, ConfigurationError, "does not let us in", "sentinel_kwargs", **wrong)
        options = {"sentinel_kwargs": {"password": "secret"}}
        harness.store = configure({"default": {"LOCATION": url, "OPTIONS": options}}).store("default")
        await harness.release(await harness.acquire(the_lock()))


@in_both_modes
async def test_the_masters_password(harness: Harness, make_redis: Callable[..., RedisServer]) -> None:
    with SentinelServer(make_redis("--requirepass", "secret").port) as sentinel:
        url = at(sentinel.port).replace("://", "://:secret@")
        harness.store = configure({"default": {"LOCATION": url}}).store("default")
        await harness.release(await harness.acquire(the_lock()))


@in_both_modes
async def test_the_master_is_down_and_nobody_else_is_named_yet(harness: Harness) -> None:
    with SentinelServer(free_port()) as sentinel:
        await refused(harness, at(sentinel.port), BackendUnavailable, "does not answer: Error 111")


@in_both_modes
@pytest.mark.parametrize("names", ["a dead master", "a replica"])
async def test_a_sentinel_that_was_cut_off_hides_none_that_knows_better(
    harness: Harness, sentinel_setup: SentinelSetup, names: str
) -> None:
    """It goes on to name the master of before, for as long as it stands alone: and stood first."""
    with FakeSentinel(free_port() if names == "a dead master" else sentinel_setup.servers[1].port) as stale:
        url = at(stale.port, sentinel_setup.sentinel.port)
        harness.store = configure({"default": {"LOCATION": url}}).store("default")
        await harness.release(await harness.acquire(the_lock()))
        harness.store.close()
        stale.asked = 0
        await harness.release(await harness.acquire(the_lock()))
        assert stale.asked == 0, "who was right is asked first"


@in_both_modes
async def test_a_sentinel_that_names_a_replica_is_not_believed(harness: Harness, sentinel_setup: SentinelSetup) -> None:
    """It was cut off from the others, and does not know of the failover."""
    replica = sentinel_setup.servers[1].port
    with FakeSentinel(replica) as stale:
        words = ("is a replica", f"127.0.0.1:{replica}, which the sentinels name")
        await refused(harness, at(stale.port), BackendUnavailable, *words)
