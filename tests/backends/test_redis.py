"""The Redis backend passes the contract: on a server of our own, through the pools that people use."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract


class TestRedis(StoreContract):
    @pytest.fixture
    def settings(self, redis_url: str) -> dict[str, Any]:
        patient = {"socket_timeout": 10, "socket_connect_timeout": 10}  # none of the cases is about time-outs
        return {"BACKEND": "redis", "LOCATION": redis_url, "OPTIONS": patient}
