"""What only the project's settings can tell the doctor; ``checks`` reports it, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings

from ..core.findings import Finding
from ..core.registry import Registry
from ..web.doctor import redis_database, shared_database


def shared_caches(registry: Registry) -> Iterator[Finding]:
    """Stores in a database that ``cache.clear()`` empties: both Redis caches of Django send FLUSHDB."""
    databases = dict(_cache_databases(settings.CACHES))
    for store in registry.stores.values():
        config = store.config
        place = databases.get(config.cache) if config.cache else redis_database(config.location)
        for alias, database in databases.items():
            if database is not None and database == place:
                yield shared_database(store.alias, f"the cache {alias!r}", f"caches[{alias!r}].clear()")


def _cache_databases(caches: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, int] | None]]:
    for alias, cache in caches.items():
        if not str(cache.get("BACKEND", "")).endswith("RedisCache"):
            continue
        locations = cache.get("LOCATION", "")
        first = locations.split(",")[0] if isinstance(locations, str) else next(iter(locations), "")
        yield alias, redis_database(first, (cache.get("OPTIONS") or {}).get("db"))
