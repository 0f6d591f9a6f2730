"""Alias → store. One backend per alias and process, made when it is first used, and made anew after a fork."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, TypeAlias, cast
from weakref import WeakSet, finalize

from . import integrations
from .backend import Backend, Claim, Port, Sharded
from .config import StoreConfig, parse
from .database_address import FrameworkDatabase
from .errors import ConfigurationError
from .process import Process, after_fork, around_fork, check_process
from .runtime import TASKS, Runtime, new_ident
from .setting import check_seconds, unknown_name
from .worker import start_thread

logger = logging.getLogger("distlock_web")

#: What only a framework can know, by the setting that names it: ``{"CACHE": connection_pool, "DATABASE": address}``,
#: called with its value.
Resources: TypeAlias = Mapping[str, Callable[[str], object]]


#: How many holds are remembered of one function or name, and of how many.
LATELY, MAX_REMEMBERED = 15, 1000


class HoldTimes:
    """Of one store: by the function that is locked, for plain blocks by the lock's name.

    Written at every release, so it is quick; a race of two threads may lose one of the times, no more.
    """

    __slots__ = ("_functions", "_names")

    def __init__(self) -> None:
        self._functions: dict[str, list[float]] = {}
        self._names: dict[str, list[float]] = {}

    def record(self, function: str, name: str, seconds: float) -> None:
        """The lock was held for so long, to the end."""
        table, key = (self._functions, function) if function else (self._names, name)
        times = table.get(key)
        if times is not None:
            times.append(seconds)
            if len(times) > LATELY:
                del times[0]
            return
        if len(table) >= MAX_REMEMBERED:
            table.clear()  # names that are never used again would fill it
        table[key] = [seconds]

    def usual(self, function: str, name: str) -> float | None:
        """The median of the last times; None: there are none. ``function`` may be a line of code: that of a block."""
        times = self._functions.get(function) or self._names.get(name)
        return median(times.copy()) if times else None


class Store:
    """One alias: its settings, and its backend once that is needed. A store that is garbage has its backend closed."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.alias = config.alias
        self.hold_times = HoldTimes()
        self.ident = new_ident()  #: what its tokens begin with, and under which servers tell its waiters something
        self._backend: Backend | None = None
        self._closing: finalize[..., Store] | None = None
        _stores.add(self)

    @property
    def backend(self) -> Backend:
        check_process()
        if self._backend is None:
            with _first_use:
                if self._backend is None:
                    loaded = self._load()
                    if self._backend is None:  # else by garbage that was collected in here
                        self._backend = loaded
                        self._closing = finalize(self, _close_aside, loaded, os.getpid())
                        self._closing.atexit = False
        return self._backend

    def port(self, runtime: Runtime) -> Port:
        backend = self._backend or self.backend  # whoever takes a lock, or ends a scope, has had the process checked
        return backend.async_port() if runtime is TASKS else backend.sync_port()

    def listing_port(self, runtime: Runtime) -> Port:
        """Where to ask what is held. Raises ``ConfigurationError`` if the store cannot show that."""
        if not self.backend.capabilities.listing:
            raise ConfigurationError(f"The store {self.alias!r} cannot show who holds its locks.")
        return self.port(runtime)

    def renewal_port(self) -> Port:
        return self.backend.renewal_port()

    def server_of(self, claim: Claim) -> object:
        """The server that renews it; None: the store is one server, or asks all of them together."""
        ask = getattr(self.backend, "server_of", None)
        return None if ask is None else cast(Sharded, self.backend).server_of(claim)

    def close(self) -> None:
        """Close the connections. What is held stays held, and can be released: a later use opens them again."""
        check_process()
        if self._backend is not None:
            self._backend.close()

    def begin_anew(self) -> None:
        """In a copy of the process: the next use makes a backend of its own, under a name of its own."""
        backend, self._backend = self._backend, None
        self.ident = new_ident()
        if backend is not None:
            _inherited.append(backend)
        if self._closing is not None:
            self._closing.detach()

    def _load(self) -> Backend:
        config = self.config
        known = config.resource() if config.backend == "sql" and config.resource is not None else None
        # An SQLite in memory: nobody else sees that, nor has to see its locks.
        if known is not None and cast(FrameworkDatabase, known).address.in_memory:
            config = replace(config, backend="memory", database="", resource=None, options={})
        module, _, name = config.path.rpartition(".")
        try:
            backend_class = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise _unimportable(config, error) from error
        for setting in config.given:
            if setting not in backend_class.settings:
                raise ConfigurationError(
                    f"DISTLOCK[{config.alias!r}] has {setting}, which the backend {config.backend!r} does not use: "
                    f"leave it out."
                )
        try:
            backend: Backend = backend_class(config)
        except ImportError as error:  # what not every address of such a store needs is imported here
            raise _unimportable(config, error) from error
        check_seconds(config.expire, f'DISTLOCK[{config.alias!r}]["EXPIRE"]', minimum=backend.capabilities.min_expire)
        return backend


def _unimportable(config: StoreConfig, error: Exception) -> ConfigurationError:
    where = f'DISTLOCK[{config.alias!r}]["BACKEND"]'
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
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, which nobody else has to wait for

    try:
        found = f"{name} {version(name)}"
    except PackageNotFoundError:  # it is packed under another name, or not by pip
        found = f"the {name} that is installed"
    return f"for which {found} is too old or too new ({error})"


def _close_aside(backend: Backend, pid: int) -> None:
    """In a thread of its own: garbage is collected anywhere, and a server may take its time."""
    if pid != os.getpid():
        _inherited.append(backend)
        return

    def close() -> None:
        try:
            backend.close()
        except Exception:
            logger.exception("The connections of an unused store could not be closed")

    try:
        start_thread("distlock-close", close)
    except RuntimeError as error:  # the process has no more threads, or ends, and its connections with it
        logger.warning("The connections of an unused store could not be closed: %s", error)


class Registry:
    """All aliases of one ``DISTLOCK`` mapping."""

    def __init__(self, mapping: Mapping[str, Any], resources: Resources | None = None) -> None:
        self.stores = {alias: Store(with_resource(config, resources or {})) for alias, config in parse(mapping).items()}

    def store(self, alias: str) -> Store:
        try:
            return self.stores[alias]
        except KeyError:
            raise ConfigurationError(unknown_name("DISTLOCK has no store", alias, tuple(self.stores))) from None

    def close(self) -> None:
        """Close all stores. One that fails, perhaps somebody's own, keeps none of the others open."""
        for store in self.stores.values():
            try:
                store.close()
            except Exception:
                logger.exception("The store %r could not be closed", store.alias)


def with_resource(config: StoreConfig, resources: Resources) -> StoreConfig:
    """The settings of a store with what only a framework has for them."""
    for setting, name in (("CACHE", config.cache), ("DATABASE", config.database)):
        if name and setting not in resources:
            raise ConfigurationError(
                f"DISTLOCK[{config.alias!r}] has {setting}, which names a {setting.lower()} of Django, but this is no "
                f"Django project that lists distlock_web.django in INSTALLED_APPS: use LOCATION."
            )
        if name:
            return replace(config, resource=partial(resources[setting], name))
    return config


_stores: WeakSet[Store] = WeakSet()
#: Backends of the parent of this process. Kept, and never touched: to close them, or to collect them as garbage, could
#: say something on the parent's connections.
_inherited: list[Backend] = []
_configured: Registry | None = None
_failed: ConfigurationError | None = None
#: Held while stores are configured and made. Reentrant: garbage that is collected meanwhile may use a store, too.
_first_use = threading.RLock()
#: Seconds that a fork waits for another thread's first use of a store.
MAX_FORK_DELAY = 5.0


def configure(mapping: Mapping[str, Any], *, resources: Resources | None = None) -> Registry:
    """Set the process's stores from a ``DISTLOCK`` mapping; earlier ones are closed. Raises ``ConfigurationError``."""
    registry = Registry(mapping, resources)
    _replace(registry)
    return registry


def configure_url(url: str, url_from: str) -> Registry:
    """Set the process's one store from a URL. Raises ``ConfigurationError``, which names where the URL came from."""
    try:
        registry = Registry({"default": {"LOCATION": url}})
        _ = registry.store("default").backend  # which looks at the rest of the URL, and connects to nothing
    except ConfigurationError as error:  # it names a DISTLOCK that nobody has written
        raise ConfigurationError(re.sub(r"""DISTLOCK\['default'](\["\w+"])?""", url_from, str(error))) from error
    _replace(registry)
    return registry


def configure_failed(error: ConfigurationError) -> None:
    """The process's settings are wrong: until good ones come, every lock raises this error, saying what is wrong.

    Without it the stores before them, or those of ``DISTLOCK_URL``, would go on in silence.
    """
    global _failed
    _failed = error


def unconfigure() -> None:
    """Forget the stores that were configured, or could not be: ``DISTLOCK_URL`` counts again."""
    _replace(None)


def _replace(registry: Registry | None) -> None:
    global _configured, _failed
    before, _configured, _failed = _configured, registry, None
    if before is not None:
        before.close()


def configured() -> Registry | None:
    """The stores that were configured for the process, whatever application is running."""
    return _configured


def registry() -> Registry:
    """The stores in force: the running application's, else the configured ones, else those of ``DISTLOCK_URL``."""
    if os.getpid() != Process.pid:
        check_process()
    for running in integrations.installed.registries:
        found: Registry | None = running()
        if found is not None:
            return found
    if _failed is not None:
        raise ConfigurationError(str(_failed))
    return _configured or _from_environment()


def _from_environment() -> Registry:
    with _first_use:
        if _configured is not None:  # by another thread, meanwhile
            return _configured
        url = os.environ.get("DISTLOCK_URL")
        if not url or _missing_app():  # not when functions are locked: the project may call configure() after that
            raise ConfigurationError(_why_there_is_none())
        return configure_url(url, "DISTLOCK_URL")


def _why_there_is_none() -> str:
    asked = [*integrations.installed.why_no_registry, _missing_app, _missing_extension]
    why = next(filter(None, (explain() for explain in asked)), "") or (
        "set DISTLOCK (Django: settings.py; Flask: app.config), call distlock_web.configure(...), or set the "
        "environment variable DISTLOCK_URL."
    )
    if "PYTEST_CURRENT_TEST" in os.environ:
        why += " A test that needs no real store uses the fixture distlock_fake."
    return f"No store for locks: {why}"


def _missing_app() -> str:
    """In words, that Django's settings have a ``DISTLOCK``, but no app that reads it; "" if that is not so."""
    conf, apps = sys.modules.get("django.conf"), sys.modules.get("django.apps")  # never imported from here
    if conf is None or apps is None or not apps.apps.apps_ready or getattr(conf.settings, "DISTLOCK", None) is None:
        return ""
    if "distlock_web.django.apps" in sys.modules:
        return ""
    return 'settings.py has a DISTLOCK, but INSTALLED_APPS lacks "distlock_web.django", which reads it.'


def _missing_extension() -> str:
    """The same of the running Flask app, and of the extension."""
    flask = sys.modules.get("flask")
    app = flask.current_app if flask is not None else None
    if not app or "DISTLOCK" not in app.config or "distlock" in app.extensions:
        return ""
    return f"app.config of {app.name!r} has a DISTLOCK, but no DistLock(app) reads it (from distlock_web.flask)."


def _before_fork() -> None:
    # A backend's module that another thread is importing just now could never be imported in the child.
    _first_use.acquire(timeout=MAX_FORK_DELAY)


def _after_fork_in_parent() -> None:
    try:
        _first_use.release()
    except RuntimeError:  # it was not to be had in time
        pass


def _forked() -> None:
    global _first_use
    _first_use = threading.RLock()
    for store in list(_stores):
        store.begin_anew()


around_fork(_before_fork, _after_fork_in_parent)
after_fork(_forked)
