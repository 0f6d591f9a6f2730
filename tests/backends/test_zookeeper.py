"""The ZooKeeper backend passes the contract, on a server of our own."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.backends.zookeeper import ZooKeeperBackend
from distlock_web.testing.contract import StoreContract


class TestZooKeeper(StoreContract):
    backend = ZooKeeperBackend
    ttl = 0.8  # several servers are asked, on a machine that is busy otherwise

    @pytest.fixture
    def settings(self, zookeeper_settings: dict[str, Any]) -> dict[str, Any]:
        return zookeeper_settings
