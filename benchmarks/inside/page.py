"""One look at the page of held locks, without its HTML."""

from __future__ import annotations

from distlock_web.core.registry import Registry
from distlock_web.ops.lock_browser import LockQuery, browse


def look(registry: Registry) -> None:
    found = browse(registry, LockQuery())
    if found.errors:
        raise next(iter(found.errors.values()))
