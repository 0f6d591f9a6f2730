"""Redis by way of Sentinel passes the contract: with locks that count at once, and when two replicas have them."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract

#: None of the cases is about time-outs.
PATIENT = {"socket_timeout": 10, "socket_connect_timeout": 10}


class TestSentinel(StoreContract):
    ttl = 0.8  # several servers are asked, on a machine that is busy otherwise

    @pytest.fixture
    def settings(self, sentinel_settings: dict[str, Any]) -> dict[str, Any]:
        return {**sentinel_settings, "OPTIONS": PATIENT}


class TestSentinelWithMinReplicas(StoreContract):
    ttl = 0.8  # several servers are asked, on a machine that is busy otherwise

    @pytest.fixture
    def settings(self, sentinel_settings: dict[str, Any]) -> dict[str, Any]:
        return {**sentinel_settings, "OPTIONS": {**PATIENT, "min_replicas": 2, "replica_timeout": 5}}
