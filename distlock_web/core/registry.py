"""Alias → store. One backend per alias and process, made when it is first used, and made anew after a fork.

A store also notes how long its locks are usually held (``HoldTimes``): what ``Retry-After`` says.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from statistics import median
from typing import Any
from weakref import WeakSet, finalize

from . import integrations
from .backend import Backend, Claim, Port
from .config import Resources, StoreConfig, parse, with_resource
from .errors import ConfigurationError
from .loading import load
from .no_stores import missing_app, why_there_are_none
from .process import Process, after_fork, around_fork, check_process
from .runtime import TASKS, Runtime, new_ident
from .setting import unknown_name
from .worker import start_thread

logger = logging.getLogger("distlock_web")

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

    def note(self, function: str, name: str, seconds: float) -> None:
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
                    loaded = load(self.config)
                    if self._backend is None:  # else by garbage that was collected in here
                        self._backend = loaded
                        self._closing = finalize(self, _close_aside, loaded, os.getpid())
                        self._closing.atexit = False
        return self._backend

    def port(self, runtime: Runtime) -> Port:
        backend = (os.getpid() == Process.pid and self._backend) or self.backend  # its own, in a copy of the process
        return backend.async_port() if runtime is TASKS else backend.sync_port()

    def renewal_port(self) -> Port:
        return self.backend.renewal_port()

    def server_of(self, claim: Claim) -> object:
        """The server that renews it; None: the store is one server, or asks all of them together."""
        return self.backend.server_of(claim)

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
        """Close all stores. One that fails, perhaps a user's own, keeps none of the others open."""
        for store in self.stores.values():
            try:
                store.close()
            except Exception:
                logger.exception("The store %r could not be closed", store.alias)


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
    return configure(check_url(url, url_from))


def check_url(url: str, url_from: str) -> dict[str, dict[str, str]]:
    """The ``DISTLOCK`` that this URL stands for. Raises ``ConfigurationError``, which names where the URL came from.

    Its backend is made, for that looks at the rest of the URL and connects to nothing; without a store, which a thread
    closes when it is garbage. Where an app starts none may run: a server forks there (uWSGI, ``gunicorn --preload``).
    """
    mapping = {"default": {"LOCATION": url}}
    try:
        load(Registry(mapping).store("default").config).close()
    except ConfigurationError as error:  # it names a DISTLOCK that was not written
        raise ConfigurationError(re.sub(r"""DISTLOCK\['default'](\["\w+"])?""", url_from, str(error))) from error
    return mapping


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
        if not url or missing_app():  # not when functions are locked: the project may call configure() after that
            raise ConfigurationError(why_there_are_none())
        return configure_url(url, "DISTLOCK_URL")


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
