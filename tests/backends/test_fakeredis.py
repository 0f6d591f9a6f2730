"""The contract on fakeredis: our scripts in its Lua, with no server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import fakeredis
import pytest

from distlock_web import BackendUnavailable, ConfigurationError, LockBusy, configure, lock
from distlock_web.testing.contract import StoreContract


class TestFakeRedis(StoreContract):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"OPTIONS": {"server": fakeredis.FakeServer()}}


def test_the_option_is_for_nothing_else() -> None:
    configure({"default": {"OPTIONS": {"server": "redis.internal"}}})
    with (
        pytest.raises(ConfigurationError, match=r"\['server'\] is for a FakeServer of fakeredis"),
        lock("a"),
    ):
        pass


def test_a_server_that_is_away_is_unreachable() -> None:
    server = fakeredis.FakeServer()
    configure({"default": {"OPTIONS": {"server": server}}})
    with lock("a"):
        server.connected = False
        with pytest.raises(BackendUnavailable, match="fakeredis at"):
            lock("b").acquire()
        server.connected = True


@pytest.mark.parametrize("stores", [["one", "one"], ["one", "other"]])
def test_callers_that_connect_at_once_exclude_each_other(stores: list[str]) -> None:
    """Each connection made a database, and a lock was lost where its release went over the connection of the other."""
    server = fakeredis.FakeServer()
    databases: Any = server.dbs
    make, both = databases.default_factory, threading.Barrier(len(stores))

    def make_slowly() -> Any:
        database = make()
        with suppress(threading.BrokenBarrierError):  # where one makes it, nobody else comes
            both.wait(0.3)
        return database

    databases.default_factory = make_slowly
    configure({name: {"OPTIONS": {"server": server}} for name in ("default", *stores)})
    with ThreadPoolExecutor(len(stores)) as threads:
        leases = list(threads.map(lambda store: lock("a", store=store, expire=60).try_acquire(), stores))
    [lease] = filter(None, leases)
    with pytest.raises(LockBusy):
        lock("a").acquire()
    lease.release()


@pytest.mark.parametrize(
    "settings",
    [
        {"LOCATION": "redis+cluster://a:6379"},
        {"LOCATION": "redis+sentinel://a:26379/name"},
        {"LOCATION": "redlock://a,b,c"},
        {"OPTIONS": {"min_replicas": 1}},
    ],
)
def test_it_is_one_server(settings: dict[str, Any]) -> None:
    options = {**settings.get("OPTIONS", {}), "server": fakeredis.FakeServer()}
    configure({"default": {**settings, "OPTIONS": options}})
    with pytest.raises(ConfigurationError, match="on fakeredis, which is one server"):
        lock("a").acquire()


def test_one_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fakeredis, "FakeRedisConnection")
    configure({"default": {"OPTIONS": {"server": fakeredis.FakeServer()}}})
    with pytest.raises(ConfigurationError, match=r"needs fakeredis 2\.31 or newer"):
        lock("a").acquire()
