"""What the regression tests share: callers of their own, and a store of each kind."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import pytest
import redis

from distlock_web import Lease, configure, lock
from distlock_web.testing.faults import eventually

Beside: TypeAlias = Callable[..., "Future[Any]"]

#: Seconds within which something happens that nobody has to wait for, on a machine that is busy otherwise.
SOON = 15.0
#: A lease that does not end during a test: who gets the lock earlier was woken.
LONG = 60.0


def unrelated(key: str, expire: float = LONG, **options: Any) -> Lease:
    """A lease that no later call of this thread re-enters."""
    return contextvars.Context().run(lock(key, expire=expire, **options).acquire)


def queued(client: redis.Redis, key: str, number: int = 1) -> None:
    """Return when so many wait for the lock."""
    eventually(lambda: client.zcard(f"{{disLock:{key}}}:queue") == number, f"{number} wait for {key}")


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Run a call in a thread and a context of its own: ``beside(call, ...).result(SOON)``."""
    with ThreadPoolExecutor(8) as pool:

        def start(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
            return pool.submit(contextvars.Context().run, partial(call, *args, **kwargs))

        yield start


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as connected:
        yield connected


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """The default store is an empty one of each kind."""
    settings = {"BACKEND": request.param}
    if request.param == "redis":
        settings["LOCATION"] = request.getfixturevalue("redis_url")
    configure({"default": settings})
    return str(request.param)
