"""A store's settings → its backend. A driver that is missing, or too old, is named with what to install."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from .backend import Backend
from .config import StoreConfig
from .database_address import FrameworkDatabase
from .errors import ConfigurationError
from .setting import check_seconds


def load(config: StoreConfig) -> Backend:
    """A new backend, which connects at its first use. ``ConfigurationError`` for what cannot be right."""
    known = config.resource() if config.backend == "sql" and config.resource is not None else None
    # An SQLite in memory: no other process sees it, nor has to see its locks.
    if known is not None and cast(FrameworkDatabase, known).address.in_memory:
        config = replace(config, backend="memory", database="", resource=None, options={})
    module, _, name = config.path.rpartition(".")
    try:
        backend_class = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise _unimportable(config, error) from error
    if Backend not in getattr(backend_class, "__mro__", ()):
        raise ConfigurationError(
            f"{config.setting('BACKEND')}: {config.path} is no store: its class has to inherit "
            f"distlock_web.core.backend.Backend."
        )
    for setting in config.given:
        if setting not in backend_class.settings:
            raise ConfigurationError(
                f"{config.where} has {setting}, which the backend {config.backend!r} does not use: leave it out."
            )
    try:
        backend: Backend = backend_class(config)
    except ImportError as error:  # what not every address of such a store needs is imported here
        raise _unimportable(config, error) from error
    check_seconds(config.expire, config.setting("EXPIRE"), minimum=backend.capabilities.min_expire)
    return backend


def _unimportable(config: StoreConfig, error: Exception) -> ConfigurationError:
    where = config.setting("BACKEND")
    if config.path != config.backend and (why := _of_driver(error)):
        return ConfigurationError(f'{where} is {config.backend!r}, {why}: pip install "distlock_web[{config.extra}]".')
    return ConfigurationError(
        f"{where}: {config.path} cannot be imported ({error}); it has to be the name of a backend, or the dotted path "
        f"of a class."
    )


def _of_driver(error: Exception) -> str:
    """What a backend of ours misses of its driver; "": it is not about a driver."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if name in ("", "distlock_web"):
        return ""
    if find_spec(name) is None:
        return f"whose driver is not installed ({name})"
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, which no other use has to wait for

    try:
        found = f"{name} {version(name)}"
    except PackageNotFoundError:  # it is packed under another name, or not by pip
        found = f"the {name} that is installed"
    return f"for which {found} is too old or too new ({error})"
