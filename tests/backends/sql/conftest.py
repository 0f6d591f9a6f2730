"""The settings of a store on each database."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.getfixturevalue(f"{request.param}_settings")
    return found


@pytest.fixture(params=["postgres", "mariadb"])
def server_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Those that are servers."""
    found: dict[str, Any] = request.getfixturevalue(f"{request.param}_settings")
    return found
