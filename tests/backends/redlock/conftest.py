"""Fixtures for what is about Redlock alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distlock_web import configure
from distlock_web.core.registry import Store
from distlock_web.testing.harness import HARNESSES, Harness
from distlock_web.testing.servers import RedisServer
from tests.support.stores.redlock import NODE_TIMEOUT, redlock_url


@pytest.fixture
def open_store() -> Iterator[Callable[..., Store]]:
    """The default store over these nodes: ``open_store(servers, restart_delay=2)``."""
    opened = []

    def make(servers: list[RedisServer], **parameters: object) -> Store:
        timeouts = {"socket_timeout": NODE_TIMEOUT, "socket_connect_timeout": NODE_TIMEOUT}
        registry = configure({"default": {"LOCATION": redlock_url(servers, **{**timeouts, **parameters})}})
        opened.append(registry)
        return registry.store("default")

    yield make
    for registry in opened:
        registry.close()


@pytest.fixture(params=sorted(HARNESSES))
def mode(request: pytest.FixtureRequest) -> type[Harness]:
    """Threads and asyncio."""
    return HARNESSES[request.param]


@pytest.fixture
def quorum(own_nodes: list[RedisServer], open_store: Callable[..., Store], mode: Any) -> Iterator[Any]:
    """Five nodes for this test alone, and a harness over them: ``nodes, harness = quorum``."""
    yield own_nodes, mode(open_store(own_nodes))
    for node in own_nodes:
        if node._process is not None:
            node.resume()
