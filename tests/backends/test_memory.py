"""The memory backend passes the contract."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"BACKEND": "memory"}
