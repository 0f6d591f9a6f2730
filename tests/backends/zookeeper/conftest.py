"""Fixtures for what is about ZooKeeper alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from distlock_web import BackendUnavailable, LockBusy, configure, lock
from tests.support.proxy import Proxy
from tests.support.requirements import require
from tests.support.stores.zookeeper import zookeeper_client
from tests.support.waiting import eventually
from tests.support.zookeeper_server import ZooKeeperServer, zookeeper_programs

#: Seconds of a session that ends soon when nobody is there.
SESSION = 3.0


@pytest.fixture
def zookeeper_store(zookeeper_settings: dict[str, Any]) -> str:
    """The default store is an empty ZooKeeper; gives its URL."""
    configure({"default": zookeeper_settings})
    return str(zookeeper_settings["LOCATION"])


@pytest.fixture
def client(zookeeper_server: ZooKeeperServer, zookeeper_url: str) -> Iterator[Any]:
    """A client of kazoo's own that sees what is in the test's chroot."""
    with zookeeper_client(zookeeper_server.port) as connected:
        connected.chroot = zookeeper_url.rpartition("/")[2].join(("/", ""))
        yield connected


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    """A server for this test alone, to stop and to restart; the default store is on it."""
    require("zookeeper", zookeeper_programs)
    with ZooKeeperServer() as server:
        configure({"default": settings_of(server.port)})
        eventually(_first_lock, "it is warm")
        yield server
        server.resume()


@pytest.fixture
def proxied(zookeeper_server: ZooKeeperServer, zookeeper_url: str) -> Iterator[Proxy]:
    """The default store is an empty ZooKeeper behind this proxy."""
    with Proxy(zookeeper_server.port) as proxy:
        configure({"default": settings_of(proxy.port, "/" + zookeeper_url.rpartition("/")[2])})
        yield proxy


def _first_lock() -> bool:
    """Of a Java that has just started; a request that is answered too late would make the server silent."""
    try:
        with lock("first"):
            return True
    except (BackendUnavailable, LockBusy):  # busy: with one that was answered too late
        return False


def settings_of(port: int, chroot: str = "") -> dict[str, Any]:
    return {
        "LOCATION": f"zookeeper://127.0.0.1:{port}{chroot}",
        "OPTIONS": {"session_timeout": SESSION, "timeout": 0.5},
    }
