"""What all cases share: the store under test, a harness in each mode, and how a case becomes a test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from distlock_web import BackendUnavailable, Lease, configure, lock
from distlock_web.core.backend import Capabilities, Claim, Granted
from distlock_web.core.runtime import Token, new_token
from distlock_web.locks.lock import Lock

from ..harness import HARNESSES, AsyncHarness, Harness

#: A name that every case uses, in the store's words and in the caller's.
KEY = "contract:42"
NAME = "test:" + KEY
PREFIX = "test:"


class Cases:
    """The store under test."""

    #: Its class, where a test file names it: what it cannot do is then not collected. Otherwise that is skipped.
    backend: ClassVar[type[Any] | None] = None
    #: A lease that cases let end, in seconds. That a busy machine is late lets it end sooner, and fails no case.
    ttl: ClassVar[float] = 0.4

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.backend is None:
            return
        for name in dir(cls):
            if lacking(getattr(getattr(cls, name), "pytestmark", ()), cls.backend.capabilities):
                setattr(cls, name, None)  # pytest collects what can be called

    @property
    def kept(self) -> float:
        """One that has to live until it is renewed or given back, which a busy machine may hold up: twice as long."""
        return 2 * self.ttl

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        """One entry of ``DISTLOCK``: a store that holds nothing yet."""
        raise NotImplementedError("the subclass gives the settings")

    @pytest.fixture(params=sorted(HARNESSES))
    def harness(self, request: pytest.FixtureRequest, settings: Mapping[str, Any]) -> Iterator[Harness]:
        yield from self._harness_of(HARNESSES[request.param], settings, request.node)

    @pytest.fixture
    def tasks(self, request: pytest.FixtureRequest, settings: Mapping[str, Any]) -> Iterator[Harness]:
        """The asyncio harness alone, for what threads do not have: cancellation."""
        yield from self._harness_of(AsyncHarness, settings, request.node)

    def _harness_of(self, mode: type[Harness], settings: Mapping[str, Any], node: pytest.Item) -> Iterator[Harness]:
        registry = configure({"default": settings})
        store = registry.store("default")
        found = type(store.backend)
        if self.backend not in (None, found):
            pytest.fail(f"the cases were chosen for {self.backend}, and this is {found}", pytrace=False)
        if missing := lacking(node.iter_markers(), store.backend.capabilities):
            pytest.skip(f"a store without {missing}")
        yield mode(store)
        registry.close()


def lacking(marks: Iterable[pytest.Mark], capabilities: Capabilities) -> str | None:
    """What a case with these marks needs, and such a store does not have; the first, or None."""
    needed = (capability for mark in marks if mark.name == "needs" for capability in mark.args)
    return next((capability for capability in needed if not getattr(capabilities, capability)), None)


def needs(*capabilities: str) -> pytest.MarkDecorator:
    """This case is about something that not every store offers: fields of ``Capabilities``."""
    return pytest.mark.needs(*capabilities)


def case(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine over ``harness`` or ``tasks``, which runs it in its own mode."""

    @functools.wraps(function)
    def test(self: Cases, **fixtures: Any) -> None:
        harness = fixtures.get("harness") or fixtures["tasks"]
        harness.run(function(self, **fixtures))

    return test


def the_lock(**options: Any) -> Lock:
    """The lock that every case uses; it does not wait, unless asked to."""
    return lock(KEY, **{"prefix": PREFIX, "expire": 30, "wait": 0, **options})


async def ending(harness: Harness, seconds: float) -> tuple[Claim, Granted]:
    """A claim of so short a lease, and its grant. A store of several servers may be told too late that it has it."""
    mine, grants = claim(expire=seconds), list[Granted]()

    async def granted() -> bool:
        try:
            answer = await harness.port.acquire(mine, 0)
        except BackendUnavailable:
            return False
        if isinstance(answer, Granted):
            grants.append(answer)
        return bool(grants)

    await harness.until(granted)
    return mine, grants[0]


async def ending_lease(harness: Harness, seconds: float) -> Lease:
    """The same by the engine: a caller's lease that ends."""
    leases = list[Lease | None]()

    async def taken() -> bool:
        with suppress(BackendUnavailable):
            leases.append(await harness.try_acquire(the_lock(expire=seconds)))
        return any(leases)

    await harness.until(taken)
    assert leases[-1] is not None
    return leases[-1]


def claim(token: str | None = None, expire: float = 30.0, name: str = NAME) -> Claim:
    """A claim for the port itself, with a fresh token."""
    return Claim(name, Token(token or new_token()), expire, "a holder")
