"""A lock that somebody else holds, a lock that is lost in the middle, a store that is unreachable."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distlock_web import Lease, lock
from distlock_web.core.registry import registry
from distlock_web.testing.fault_injector import FaultInjector


@pytest.fixture(params=["memory", "redis"])
def chosen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One alias of ``DISTLOCK``, empty."""
    if request.param == "memory":
        return {"BACKEND": "memory"}
    return {"BACKEND": "redis", "LOCATION": request.getfixturevalue("redis_url")}


@pytest.fixture
def injector(chosen: dict[str, Any], settings: Any) -> FaultInjector:
    """The default store of a Django project; what is sent to it is written down."""
    settings.DISTLOCK = {"default": chosen}
    return FaultInjector(registry().store("default"))


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Lease]]:
    """Hold a lock outside of the test's own call chain, which would re-enter it."""
    taken: list[tuple[contextvars.Context, Lease]] = []

    def hold(key: str, expire: float = 10, **options: Any) -> Lease:
        context = contextvars.Context()
        taken.append((context, context.run(lock(key, expire=expire, **options).acquire)))
        return taken[-1][1]

    yield hold
    for context, lease in taken:
        if lease.state == "held":
            context.run(lease.release)
