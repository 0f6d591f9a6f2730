"""``settings.DISTLOCK`` → the process's stores."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ..core.config import Resources
from ..core.errors import ConfigurationError
from ..core.registry import configure, configure_failed, configured, unconfigure
from ..core.setting import shown
from ..web.settings import PROJECT_POLICIES, with_policies

_configured = False


def configure_from_settings() -> None:
    """Put ``settings.DISTLOCK`` in force.

    A wrong one raises nothing here, where it would end every command before the system checks could say what is
    wrong. It raises ``ConfigurationError`` as soon as a lock is used.
    """
    global _configured
    try:
        mapping, mistakes = project_mapping()
        for mistake in mistakes:
            raise mistake
        if mapping is not None:
            configure(mapping, resources=RESOURCES)
        elif _configured:  # by a test that has ended
            unconfigure()
        _configured = mapping is not None
    except ConfigurationError as error:
        configure_failed(error)
        _configured = True


def project_mapping() -> tuple[Any, list[ConfigurationError]]:
    """``DISTLOCK`` with the project's policies, and what is wrong with these."""
    project = {name: getattr(settings, name) for name in PROJECT_POLICIES if hasattr(settings, name)}
    return with_policies(getattr(settings, "DISTLOCK", None), project)


def _database(alias: str) -> Any:
    from .databases import database  # not before the models can be imported

    return database(alias)


def connection_pool(alias: str) -> Any:
    """The redis-py connection pool of a Django cache: django-redis's, or that of Django's own ``RedisCache``."""
    try:
        cache = caches[alias]
    except InvalidCacheBackendError:
        known = ", ".join(map(repr, settings.CACHES))
        raise ConfigurationError(
            f"DISTLOCK names the cache {shown(alias)}, which is not in CACHES; it has to be one of {known}."
        ) from None
    backend = f"{type(cache).__module__}.{type(cache).__qualname__}"
    client = getattr(cache, "client", None)  # django-redis
    if client is None:
        client = getattr(cache, "_cache", None)  # Django's RedisCache, which shows its client in no public way
    try:
        # The server that is written to: a lock that is read from a replica excludes no caller.
        return client.get_client(write=True).connection_pool  # type: ignore[union-attr]
    except NotImplementedError:
        raise ConfigurationError(
            f"DISTLOCK names the cache {alias!r}, whose {type(client).__qualname__} spreads its keys over several "
            f"servers: give DISTLOCK a LOCATION of its own, on one of them."
        ) from None
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"DISTLOCK names the cache {alias!r}, which is a {backend}: locks need a Redis cache, django_redis or "
            f"django.core.cache.backends.redis, or a LOCATION of their own."
        ) from None


def _close_before_the_database_goes(*, connection: BaseDatabaseWrapper, **kwargs: object) -> None:
    """A command that connects to no database makes, copies or drops one, as a test run does when it begins and ends.

    PostgreSQL refuses that as long as anybody is connected. A later use opens connections again.
    """
    if connection.alias == NO_DB_ALIAS:
        registry = configured()
        for store in registry.stores.values() if registry is not None else ():
            if store.config.database:
                store.close()


connection_created.connect(_close_before_the_database_goes, dispatch_uid="distlock_web.stores")

RESOURCES: Resources = {"CACHE": connection_pool, "DATABASE": _database}
