"""The Redis backend passes the contract on Valkey, too."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from distlock_web.testing.contract import StoreContract
from tests.support.stores.valkey import ValkeyServer


class TestValkey(StoreContract):
    @pytest.fixture
    def settings(self, valkey_settings: dict[str, Any]) -> dict[str, Any]:
        return {**valkey_settings, "OPTIONS": {"socket_timeout": 10, "socket_connect_timeout": 10}}


def test_it_is_valkey(valkey_server: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey_server.url) as client:
        assert client.info("server")["server_name"] == "valkey"
