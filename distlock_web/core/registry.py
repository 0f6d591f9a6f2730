"""Alias → store. One backend per alias and process, made when it is first used, and made anew after a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .backend import Backend, Port
from .config import StoreConfig, parse, unknown
from .errors import ConfigurationError
from .runtime import TASKS, Runtime

#: Gives a client pool for ``"CACHE": alias``; only a framework that has caches can know it.
Caches = Callable[[str], Any]


class Store:
    """One alias: its settings, and its backend once that is needed."""

    def __init__(self, config: StoreConfig, caches: Caches | None = None) -> None:
        self.config = config
        self.alias = config.alias
        self._caches = caches
        self._backend: Backend | None = None
        self._lock = threading.Lock()
        _stores.add(self)

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            with self._lock:
                if self._backend is None:
                    self._backend = self._load()
        return self._backend

    def port(self, runtime: Runtime) -> Port:
        return self.backend.async_port() if runtime is TASKS else self.backend.sync_port()

    def renewal_port(self) -> Port:
        return self.backend.renewal_port()

    def close(self) -> None:
        """Let go of connections. What is held stays held, and can be given back: a later use opens them again."""
        if self._backend is not None:
            self._backend.close()

    def forked(self) -> None:
        self._lock = threading.Lock()
        if self._backend is not None:
            self._backend.after_fork()

    def _load(self) -> Backend:
        config = self.config
        where = f'DISTLOCK[{config.alias!r}]["BACKEND"]'
        module, _, name = config.path.rpartition(".")
        try:
            backend_class = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if (error.name and error.name.startswith("distlock_web")) or config.path == config.backend:
                raise ConfigurationError(f"{where}: {config.path} cannot be imported: {error}.") from error
            raise ConfigurationError(
                f"{where} is {config.backend!r}, whose driver is not installed ({error.name}): "
                f'pip install "distlock_web[{config.backend}]".'
            ) from error
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"{where}: {config.path} cannot be imported: {error}.") from error
        pool = None
        if config.cache:
            if self._caches is None:
                raise ConfigurationError(
                    f"DISTLOCK[{config.alias!r}] has CACHE, which names a Django cache, but this is no Django "
                    f"project that lists distlock_web.django in INSTALLED_APPS: use LOCATION."
                )
            pool = self._caches(config.cache)
        backend: Backend = backend_class(config, pool)
        return backend


class Registry:
    """All aliases of one ``DISTLOCK`` mapping."""

    def __init__(self, mapping: Mapping[str, Any], caches: Caches | None = None) -> None:
        self.stores = {alias: Store(config, caches) for alias, config in parse(mapping).items()}

    def store(self, alias: str) -> Store:
        try:
            return self.stores[alias]
        except KeyError:
            raise ConfigurationError(unknown("DISTLOCK has no store", alias, tuple(self.stores))) from None

    def close(self) -> None:
        for store in self.stores.values():
            store.close()


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_configured: Registry | None = None
_configuring = threading.Lock()
#: A framework with several applications in a process says here which one's locks are meant.
resolvers: list[Callable[[], Registry | None]] = []


def configure(mapping: Mapping[str, Any], *, caches: Caches | None = None) -> Registry:
    """Set the process's stores from a ``DISTLOCK`` mapping, in place of those before. Raises ``ConfigurationError``."""
    global _configured
    registry = Registry(mapping, caches)
    if _configured is not None:
        _configured.close()
    _configured = registry
    return registry


def unconfigure() -> None:
    """Forget the stores that were configured: ``DISTLOCK_URL`` counts again."""
    global _configured
    if _configured is not None:
        _configured.close()
    _configured = None


def registry() -> Registry:
    """The stores in force: the running application's, else the configured ones, else those of ``DISTLOCK_URL``."""
    for resolve in resolvers:
        found = resolve()
        if found is not None:
            return found
    return _configured or _from_environment()


def _from_environment() -> Registry:
    with _configuring:
        if _configured is not None:  # by another thread, meanwhile
            return _configured
        url = os.environ.get("DISTLOCK_URL")
        if not url:
            raise ConfigurationError(
                "No store for locks: set DISTLOCK (Django: settings.py; Flask: app.config), call "
                "distlock_web.configure(...), or set the environment variable DISTLOCK_URL."
            )
        return configure({"default": {"LOCATION": url}})


def _forked() -> None:
    global _configuring
    _configuring = threading.Lock()  # a thread that stayed in the parent may have held it
    for store in list(_stores):
        store.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
