"""What only the project's settings can tell the doctor; ``checks`` reports it, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings

from ..core.findings import Finding
from ..core.registry import Registry


def shared_caches(registry: Registry) -> Iterator[Finding]:
    """Stores in a database that ``cache.clear()`` empties: both Redis caches of Django send FLUSHDB."""
    databases = dict(_cache_databases(settings.CACHES))
    for store in registry.stores.values():
        config = store.config
        place = databases.get(config.cache) if config.cache else _database(config.location)
        for alias, database in databases.items():
            # One that the settings name for the locks is for them alone; "default" is what everything else uses.
            if database is None or database != place or (alias == config.cache != "default"):
                continue
            remedy = "Another database number for one of them, such as redis://.../1."
            if alias == config.cache:
                remedy = 'A cache for the locks alone, as CACHES["locks"] on redis://.../1, and "CACHE": "locks".'
            yield Finding(
                "DL006", "warning", f"The locks are in the same Redis database as the cache {alias!r}.",
                f"caches[{alias!r}].clear() empties the database: every lock is gone while its holder still runs.",
                remedy, f"store {store.alias}",
            )  # fmt: skip


def _cache_databases(caches: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, int] | None]]:
    for alias, cache in caches.items():
        if not str(cache.get("BACKEND", "")).endswith("RedisCache"):
            continue
        locations = cache.get("LOCATION", "")
        first = locations.split(",")[0] if isinstance(locations, str) else next(iter(locations), "")
        yield alias, _database(first, (cache.get("OPTIONS") or {}).get("db", 0))


def _database(location: str, number: object = 0) -> tuple[str, int] | None:
    """Server and number of the database that a URL of Redis means; None: it is no such URL.

    ``number``: a setting beside the URL, which counts where the URL has none.
    """
    try:
        url = urlsplit(location)
        port = url.port or 6379
    except ValueError:  # its own finding, where a store has it
        return None
    if url.scheme not in ("redis", "rediss", "unix"):
        return None
    named = parse_qs(url.query).get("db", [url.path.strip("/") if url.scheme != "unix" else ""])[0]
    host = url.hostname or "localhost"
    server = url.path if url.scheme == "unix" else f"{'127.0.0.1' if host == 'localhost' else host}:{port}"
    chosen = named or str(number)
    return (server, int(chosen)) if chosen.isdigit() else None
