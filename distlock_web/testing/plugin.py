"""A pytest plugin for projects that use distlock_web: their locks in memory, and ``race``.

pytest loads it by itself, where distlock_web is installed. ``-p no:distlock_web.testing.plugin`` keeps it from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from .fakes import assert_lock_free, expire_lock, hold_lock, locks_in_memory, lose_lock, store_down

if TYPE_CHECKING:
    from .race import Race

__all__ = ["assert_lock_free", "distlock_fake", "expire_lock", "hold_lock", "lose_lock", "store_down"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs: a case of the contract, for stores that offer these capabilities")


@pytest.fixture
def distlock_fake() -> Iterator[None]:
    """Keep all locks of the project in this process's memory, for one test. No server is needed, and no lock is held.

    The other settings (``PREFIX``, ``EXPIRE``, ``ON_BUSY``, …) stay as the project has them.
    """
    with locks_in_memory():
        yield


@pytest.fixture
def race(request: pytest.FixtureRequest) -> Race:
    """``race(call, callers=2)``: try the orders of what they do, until one gives what no serial order gives.

    A Flask app that the test has as the fixture ``app`` gives the clients.
    """
    from .race import Race

    app = request.getfixturevalue("app") if "app" in request.fixturenames else None
    capture = request.config.pluginmanager.getplugin("capturemanager")
    return Race(
        client=getattr(app, "test_client", None),
        uncaptured=nullcontext if capture is None else capture.global_and_fixture_disabled,
    )
