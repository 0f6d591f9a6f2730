"""The memory backend passes the contract: in a world whose time takes none, where threads change at every lock."""

from __future__ import annotations

from distlock_web.testing.contract import StoreContract
from tests.support.in_world import copies


class TestMemory(copies(*StoreContract.__bases__)):  # type: ignore[misc]
    """Its cases, over the world's copy of the package."""
