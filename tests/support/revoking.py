"""A lock that is revoked under its holder, as on the admin page."""

from __future__ import annotations

from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.ops.held_locks import list_all


def revoke(name: str, fence: int | None, alias: str = "default") -> bool:
    """Revoke the lock of this name from the holder with this fence; whether it was still held by that one."""
    return drive(registry().store(alias).port(THREADS).revoke(name, fence or 0))


def revoke_the_lock() -> None:
    """Revoke the one lock that is held: its holder has lost it."""
    [row] = list_all(registry()).rows
    assert revoke(row.lock.name, row.lock.fence, row.alias)
