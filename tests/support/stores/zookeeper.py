"""ZooKeeper as a store: one server for the session, and a chroot of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.requirements import require
from tests.support.zookeeper_server import ZooKeeperServer, zookeeper_programs

_chroots = itertools.count(1)


@contextmanager
def zookeeper_client(port: int) -> Iterator[Any]:
    """A client of kazoo's own, connected."""
    client = KazooClient(f"127.0.0.1:{port}", timeout=60)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """One ZooKeeper for the whole session; a test that stops one has ``own_zookeeper``."""
    require("zookeeper", zookeeper_programs)
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def _zookeeper(zookeeper_server: ZooKeeperServer) -> Iterator[Any]:
    with zookeeper_client(zookeeper_server.port) as client:
        yield client


@pytest.fixture
def zookeeper_url(zookeeper_server: ZooKeeperServer, _zookeeper: Any) -> str:
    """The URL of an empty chroot."""
    chroot = f"/test-{next(_chroots)}"
    _zookeeper.create(chroot)
    return zookeeper_server.url + chroot


@pytest.fixture
def zookeeper_settings(zookeeper_url: str) -> dict[str, Any]:
    """One entry of ``DISTLOCK``: a ZooKeeper that holds nothing yet."""
    return {"BACKEND": "zookeeper", "LOCATION": zookeeper_url, "OPTIONS": {"session_timeout": 60, "timeout": 10}}
