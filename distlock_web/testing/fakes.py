"""Locks as a project's tests want them: in memory, held by another caller, lost, ended, out of reach. Needs no pytest.

All of them act on the stores of the running code: those in memory, or real ones.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from distlock_web.core import integrations, registry
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.config import StoreConfig
from distlock_web.core.keys import shorten, whole_key
from distlock_web.core.registry import Registry, Store
from distlock_web.core.request_id import HolderInfo
from distlock_web.core.runtime import THREADS, drive, new_token, now
from distlock_web.locks.reentry.chain import find_enclosing

from .fault_injector import FaultInjector


@contextmanager
def locks_in_memory() -> Iterator[None]:
    """Keep all locks of the project in this process's memory while the block runs. At its beginning none is held.

    No server is needed. The other settings (``PREFIX``, ``EXPIRE``, ``ON_BUSY``, …) stay as the project has them.
    """
    fake = _InMemory()
    # In front of the others. Not in their place: a framework that is imported within the block adds its own.
    running = integrations.installed.registries
    running.insert(0, fake.itself)
    try:
        yield
    finally:
        running.remove(fake.itself)
        fake.close()


class LocksInMemory(unittest.TestCase):
    """For ``unittest``, in front of Django's ``TestCase`` if there is one: :func:`locks_in_memory` around each test."""

    def setUp(self) -> None:
        self.enterContext(locks_in_memory())  # before the setUp of other base classes, which may take locks
        super().setUp()


@contextmanager
def hold_lock(
    key: object, *, prefix: str | None = None, store: str = "default", expire: float = 60.0
) -> Iterator[None]:
    """Another caller holds the lock on this key while the block runs. ``AssertionError`` if it is held already."""
    where = registry.registry().store(store)
    name = _name(where, key, prefix)
    claim = Claim(name, new_token(where.ident), expire)
    port = where.port(THREADS)
    if not isinstance(drive(port.acquire(claim, 0)), Granted):
        raise AssertionError(f"The lock {name!r} is held already.")
    try:
        yield
    finally:
        drive(port.release(claim))


def assert_lock_free(key: object, *, prefix: str | None = None, store: str = "default") -> None:
    """``AssertionError`` if the lock on this key is held. The error says by whom, and for how long."""
    where = registry.registry().store(store)
    name = _name(where, key, prefix)
    for line in drive(where.port(THREADS).inspect()):
        if line.name == name:
            who = HolderInfo.loads(line.holder).describe() or "somebody unknown"
            raise AssertionError(f"The lock {name!r} is held, for {line.remaining:.1f} s more, by {who}.")


def lose_lock(key: object, *, prefix: str | None = None, store: str = "default") -> None:
    """Release the lock on this key by force, from all of its holders.

    ``AssertionError`` if it is free, or if its store gives no fences, by which a holder is named.
    A holder learns of it in ``lease.extend()``, at a renewal, or at the end of its block, which raises ``LeaseLost``.
    """
    where = registry.registry().store(store)
    name, port = _name(where, key, prefix), where.port(THREADS)
    fences = [line.fence for line in drive(port.inspect([name]))]
    if None in fences:
        raise AssertionError(f"The store {store!r} gives no fences: its locks cannot be released by force.")
    revoked = [drive(port.revoke(name, fence)) for fence in fences if fence is not None]
    if not any(revoked):
        raise AssertionError(f"Nobody holds the lock {name!r}.")


def expire_lock(key: object, *, prefix: str | None = None, store: str = "default") -> None:
    """End the lease that the calling code is inside, as if its time was over. Another caller can then take the lock.

    The holder knows at once: ``lease.lost`` is set, ``on_lost`` is called, and the end of the block raises
    ``LeaseLost``. Call it inside the block, or in code that the locked function calls. Elsewhere: ``AssertionError``.
    """
    where = registry.registry().store(store)
    name = _name(where, key, prefix)
    found = find_enclosing(where, name)
    if found is None:
        raise AssertionError(f"The running code is not inside of the lock {name!r}.")
    hold = found[1]
    hold.deadline = now()
    drive(where.port(THREADS).cancel(hold.claim_to_the_end))
    hold.check()


@contextmanager
def store_down(store: str = "default") -> Iterator[None]:
    """The store does not answer while the block runs: ``BackendUnavailable``, a 503. Held locks stay held."""
    injector = FaultInjector(registry.registry().store(store))
    injector.cut()
    try:
        yield
    finally:
        injector.remove()


def _name(store: Store, key: object, prefix: str | None) -> str:
    return shorten((store.config.prefix if prefix is None else prefix) + whole_key(key))


class _InMemory(Registry):
    """The registry that would be in force, with every store in memory; made alias by alias, as they are asked for."""

    def __init__(self) -> None:
        super().__init__({"default": {"BACKEND": "memory"}})
        self.stores.clear()

    def itself(self) -> Registry:
        return self

    def store(self, alias: str) -> Store:
        config = self._config_of_app(alias) or self._config_of_process(alias)
        if config is None and alias in self.stores:  # outside of an app: as it was used last
            return self.stores[alias]
        config = config or StoreConfig(alias)
        config = replace(config, backend="memory", location="", cache="", database="", resource=None, options={})
        # Of two threads one wins: two stores would not exclude each other.
        store = self.stores.get(alias) or self.stores.setdefault(alias, Store(config))
        if store.config != config:  # it was used before with other settings: of another app, or of none
            store.config = config
        return store

    def _config_of_app(self, alias: str) -> StoreConfig | None:
        for running in integrations.installed.registries:
            if isinstance(getattr(running, "__self__", None), _InMemory):  # this one, and one that is around it
                continue
            found: Registry | None = running()
            if found is not None:
                return found.store(alias).config
        return None

    def _config_of_process(self, alias: str) -> StoreConfig | None:
        found = registry.configured()
        return None if found is None else found.store(alias).config
