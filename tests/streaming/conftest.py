"""Real servers with real clients, started once for all tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from distlock_web.testing.servers import RedisServer
from tests.support.web_servers import COMPLAINTS, NOT_OURS, Server


@pytest.fixture(scope="module")
def start(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Start a server, once for all tests of the module."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(name: str, url: str = redis_server.url) -> Server:
            if name + url not in running:
                log = tmp_path_factory.mktemp("servers") / "log"
                running[name + url] = Server(name, log, url, redis_server.url)
                stack.callback(running[name + url].stop)
            return running[name + url]

        yield start


@pytest.fixture
def serve(start: Callable[..., Server], redis_store: str) -> Iterator[Callable[..., Server]]:
    """A server by its name, over an empty store; at the end of the test it must not have complained."""
    used: list[Server] = []

    def serve(name: str, *url: str) -> Server:
        server = start(name, *url)
        server.said()
        used.append(server)
        return server

    yield serve
    for server in used:
        said = server.said()
        lines = [line for line in said.splitlines() if not any(other in line for other in NOT_OURS)]
        assert not any(complaint in line for complaint in COMPLAINTS for line in lines), said


@pytest.fixture
def seen(redis_url: str) -> Iterator[Callable[[], list[str]]]:
    """What the bodies have told, in their order."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield lambda: client.lrange("seen", 0, -1)
