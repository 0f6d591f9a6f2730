"""A lock that is revoked under its holder, as on the admin page."""

from __future__ import annotations

from distlock_web.core.registry import registry
from distlock_web.web.held_locks import held, revoke


def revoke_the_lock() -> None:
    """Revoke the one lock that is held: its holder has lost it."""
    [row] = held(registry()).rows
    assert revoke(registry(), row.alias, row.lock.name, row.lock.fence or 0)
