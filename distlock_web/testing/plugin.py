"""A pytest plugin for projects that use distlock_web: their locks in memory, and another caller who holds one.

pytest loads it by itself, where distlock_web is installed. ``-p no:distlock_web.testing.plugin`` keeps it from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from distlock_web.core import registry
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.config import StoreConfig
from distlock_web.core.keys import shorten, whole_key
from distlock_web.core.registry import Registry, Store
from distlock_web.core.request_id import HolderInfo
from distlock_web.core.runtime import THREADS, drive, new_token


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs: a case of the contract, for stores that offer these capabilities")


@pytest.fixture
def distlock_fake() -> Iterator[None]:
    """All locks of the project in this process's memory, for one test: no server is needed, and none are held.

    The other settings (``PREFIX``, ``EXPIRE``, ``ON_BUSY``, …) stay as the project has them.
    """
    fake = _InMemory()
    # In front of the others. Not in their place: a framework that is imported within the test adds its own.
    registry.resolvers.insert(0, fake.itself)
    yield
    registry.resolvers.remove(fake.itself)
    fake.close()


@contextmanager
def hold_lock(
    key: object, *, prefix: str | None = None, store: str = "default", expire: float = 60.0
) -> Iterator[None]:
    """Somebody else holds the lock on this key while the block runs. ``AssertionError`` if it is held already."""
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
    """``AssertionError`` if somebody holds the lock on this key; it says for how long still, and who."""
    where = registry.registry().store(store)
    name = _name(where, key, prefix)
    for line in drive(where.port(THREADS).inspect()):
        if line.name == name:
            who = HolderInfo.loads(line.holder).describe() or "somebody unknown"
            raise AssertionError(f"The lock {name!r} is held, for {line.remaining:.1f} s more, by {who}.")


def _name(store: Store, key: object, prefix: str | None) -> str:
    return shorten((store.config.prefix if prefix is None else prefix) + whole_key(key))


class _InMemory(Registry):
    """The registry that would be in force, with every store in memory; made alias by alias, as they are asked for."""

    def __init__(self) -> None:
        super().__init__({"default": {"BACKEND": "memory"}})
        self.stores.clear()
        self._of_an_app: set[str] = set()  #: the aliases whose settings an app has told

    def itself(self) -> Registry:
        return self

    def store(self, alias: str) -> Store:
        if alias not in self._of_an_app:
            of_app = self._config_of_app(alias)
            if of_app is None and alias in self.stores:
                return self.stores[alias]
            config = self._config_of_process(alias) if of_app is None else of_app
            config = replace(config, backend="memory", location="", cache="", database="", resource=None, options={})
            # Of two threads one wins: two stores would exclude nobody.
            store = self.stores.setdefault(alias, Store(config))
            if of_app is not None:  # it may have been used before, outside of the app
                store.config = config
                self._of_an_app.add(alias)
        return self.stores[alias]

    def _config_of_app(self, alias: str) -> StoreConfig | None:
        for resolve in registry.resolvers:
            if resolve != self.itself and (found := resolve()) is not None:
                return found.store(alias).config
        return None

    def _config_of_process(self, alias: str) -> StoreConfig:
        found = registry.configured()
        return StoreConfig(alias) if found is None else found.store(alias).config
