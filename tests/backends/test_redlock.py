"""The Redlock backend passes the contract, over five servers of our own."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.backends.redlock import RedlockBackend
from distlock_web.testing.contract import StoreContract


class TestRedlock(StoreContract):
    backend = RedlockBackend
    ttl = 0.8  # several servers are asked, on a machine that is busy otherwise

    @pytest.fixture
    def settings(self, redlock_settings: dict[str, Any]) -> dict[str, Any]:
        return redlock_settings
