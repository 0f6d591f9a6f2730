"""The contract on fakeredis: our scripts in its Lua, with no server."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest

from distlock_web import BackendUnavailable, ConfigurationError, configure, lock
from distlock_web.testing.contract import StoreContract


class TestFakeRedis(StoreContract):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"OPTIONS": {"server": fakeredis.FakeServer()}}


def test_the_option_is_for_nothing_else() -> None:
    configure({"default": {"OPTIONS": {"server": "redis.internal"}}})
    with (
        pytest.raises(ConfigurationError, match=r'\["OPTIONS"\]\["server"\] is for a FakeServer of fakeredis'),
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
