"""etcd as a store: one server for the session, and a path of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.etcd_server import EtcdServer, etcd_program
from tests.support.requirements import require

_paths = itertools.count(1)


def etcd_entry(port: int, path: str, **options: Any) -> dict[str, Any]:
    """One entry of ``DISTLOCK``."""
    location = f"etcd://127.0.0.1:{port}/{path}"
    return {"BACKEND": "tests.support.stores.etcd.EtcdBackend", "LOCATION": location, "OPTIONS": options}


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    require("etcd", etcd_program)
    with EtcdServer() as server:
        yield server


@pytest.fixture
def etcd_settings(etcd_server: EtcdServer) -> dict[str, Any]:
    """One entry of ``DISTLOCK``: an etcd that holds nothing yet."""
    return etcd_entry(etcd_server.port, f"test-{next(_paths)}", timeout=10)
