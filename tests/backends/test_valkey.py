"""The Redis backend passes the contract on Valkey, too."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract


class TestValkey(StoreContract):
    @pytest.fixture
    def settings(self, valkey_settings: dict[str, Any]) -> dict[str, Any]:
        return {**valkey_settings, "OPTIONS": {"socket_timeout": 10, "socket_connect_timeout": 10}}
