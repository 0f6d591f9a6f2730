"""The Redis Cluster backend passes the contract: three masters and their replicas, of our own."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract


class TestCluster(StoreContract):
    ttl = 0.8  # several servers are asked, on a machine that is busy otherwise

    @pytest.fixture
    def settings(self, cluster_settings: dict[str, Any]) -> dict[str, Any]:
        return {**cluster_settings, "OPTIONS": {"socket_timeout": 10, "socket_connect_timeout": 10}}
