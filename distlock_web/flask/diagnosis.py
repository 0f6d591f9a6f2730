"""What only the app's settings can tell the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import current_app

from ..core.findings import Finding
from ..core.registry import registry
from ..web.doctor import redis_database, shared_database


def findings(gunicorn: float | None) -> list[Finding]:
    """Stores in a database that Flask-Caching's ``cache.clear()`` empties: it does without a key prefix."""
    place = _cache_database(current_app.config)
    return [
        shared_database(store.alias, "Flask-Caching, which has no CACHE_KEY_PREFIX", "cache.clear()")
        for store in registry().stores.values()
        if place is not None and redis_database(store.config.location) == place
    ]


def _cache_database(config: Mapping[str, Any]) -> tuple[str, int] | None:
    kind = str(config.get("CACHE_TYPE", "")).rpartition(".")[2].casefold()
    if kind not in ("redis", "rediscache") or config.get("CACHE_KEY_PREFIX", "flask_cache_"):
        return None
    host, port = config.get("CACHE_REDIS_HOST", "localhost"), config.get("CACHE_REDIS_PORT", 6379)
    url = config.get("CACHE_REDIS_URL") or f"redis://{host}:{port}"
    return redis_database(url, config.get("CACHE_REDIS_DB"))
