"""What only the app's settings and views can tell the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import current_app

from ..core.findings import Finding
from ..core.registry import Registry, registry
from ..web.doctor import examine_functions, redis_database, shared_database
from .views import locked_functions


def findings(gunicorn: float | None) -> list[Finding]:
    """Views whose times do not fit gunicorn's; stores in a database that a cache empties."""
    stores = registry()
    views = (
        (f"view {name}", function)
        for endpoint, view in current_app.view_functions.items()
        for name, function in locked_functions(endpoint, view)
    )
    return [*examine_functions(views, stores, gunicorn), *_shared_caches(stores)]


def _shared_caches(stores: Registry) -> Iterator[Finding]:
    """Flask-Caching's ``cache.clear()`` empties the whole database where there is no key prefix."""
    place = _cache_database(current_app.config)
    for store in stores.stores.values():
        if place is not None and redis_database(store.config.location) == place:
            yield shared_database(store.alias, "Flask-Caching, which has no CACHE_KEY_PREFIX", "cache.clear()")


def _cache_database(config: Mapping[str, Any]) -> tuple[str, int] | None:
    kind = str(config.get("CACHE_TYPE", "")).rpartition(".")[2].casefold()
    if kind not in ("redis", "rediscache") or config.get("CACHE_KEY_PREFIX", "flask_cache_"):
        return None
    host, port = config.get("CACHE_REDIS_HOST", "localhost"), config.get("CACHE_REDIS_PORT", 6379)
    url = config.get("CACHE_REDIS_URL") or f"redis://{host}:{port}"
    return redis_database(url, config.get("CACHE_REDIS_DB"))
