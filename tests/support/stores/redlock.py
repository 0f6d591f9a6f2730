"""Five Redis servers that know nothing of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from distlock_web.testing.servers import RedisServer
from tests.support.requirements import require_redis

NODES = 5
#: Seconds that one node's answer may take: longer than a busy machine needs, and short enough to wait for.
NODE_TIMEOUT = 0.5


def redlock_url(servers: list[RedisServer], **parameters: object) -> str:
    """Tests do not let a node that was just started wait, unless they are about that."""
    query = "&".join(f"{name}={value}" for name, value in {"restart_delay": 0, **parameters}.items())
    return f"redlock://{','.join(f'127.0.0.1:{server.port}' for server in servers)}/0?{query}"


def make_old(server: RedisServer, seconds: int = 60) -> None:
    """It knows who it is, since then it says: so it votes, if that is longer than its delay."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        words, born = str(client.get("disLock:~quorum")).rsplit(" ", 1)
        client.set("disLock:~quorum", f"{words} {int(born) - seconds * 1_000_000}", keepttl=True)


@pytest.fixture(scope="session")
def redlock_servers() -> Iterator[list[RedisServer]]:
    """For the whole session; tests that stop or freeze one use ``own_nodes``."""
    require_redis()
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(NODES)]


@pytest.fixture
def redlock_nodes(redlock_servers: list[RedisServer]) -> list[RedisServer]:
    """The same, empty."""
    for server in redlock_servers:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            client.script_flush()
    return redlock_servers


@pytest.fixture
def redlock_settings(redlock_nodes: list[RedisServer]) -> dict[str, Any]:
    # A busy machine: a node that is slow for a moment shall not count as gone.
    return {"LOCATION": redlock_url(redlock_nodes, socket_timeout=2, socket_connect_timeout=2)}


@pytest.fixture
def own_nodes(make_redis: Callable[..., RedisServer]) -> list[RedisServer]:
    """Five nodes for this test alone."""
    return [make_redis() for _ in range(NODES)]


def left_on(servers: list[RedisServer]) -> dict[int, list[str]]:
    """What says that a lock is held, by the port of each node that has such a key."""
    found = {}
    for server in servers:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            names = [name for name in client.scan_iter("disLock:*", count=1000) if client.type(name) == "string"]
            values = [(name, str(client.get(name)).split(" ")) for name in names if not name.endswith("~quorum")]
            held = [name for name, words in values if words[1:] and words[1] != "revoked"]  # else it ended meanwhile
        if held:
            found[server.port] = held
    return found
