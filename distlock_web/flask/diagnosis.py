"""What only the app's settings can tell the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import current_app

from ..core.findings import Finding
from ..core.registry import registry
from ..web.doctor import redis_database, shared_database


def findings() -> Iterator[Finding]:
    """Flask-Caching's ``cache.clear()`` empties the whole database where there is no key prefix."""
    place = _cache_database(current_app.config)
    for store in registry().stores.values():
        if place is not None and redis_database(store.config.location) == place:
            yield shared_database(store.alias, "Flask-Caching, which has no CACHE_KEY_PREFIX", "cache.clear()")


def _cache_database(config: Mapping[str, Any]) -> tuple[str, int] | None:
    kind = str(config.get("CACHE_TYPE", "")).rpartition(".")[2].casefold()
    if kind not in ("redis", "rediscache") or config.get("CACHE_KEY_PREFIX", "flask_cache_"):
        return None
    host, port = config.get("CACHE_REDIS_HOST", "localhost"), config.get("CACHE_REDIS_PORT", 6379)
    url = config.get("CACHE_REDIS_URL") or f"redis://{host}:{port}"
    return redis_database(url, config.get("CACHE_REDIS_DB"))
