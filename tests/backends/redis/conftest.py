"""Fixtures for what is about Redis alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from distlock_web.testing.servers import RedisServer
from tests.support.clock_shift import ShiftedRedis, compiled_shim
from tests.support.crowd import StartCrowd, start_crowd
from tests.support.failover import Failover
from tests.support.processes import Worker
from tests.support.requirements import require_redis


@pytest.fixture
def crowd(redis_store: str) -> Iterator[StartCrowd]:
    """A process with many waiters, on the session's (empty) Redis: ``crowd(count=20, expire=1.0)``."""
    started: list[Worker] = []

    def start(**options: Any) -> Worker:
        started.append(start_crowd(redis_store, **options))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def failover(make_redis: Callable[..., RedisServer]) -> Iterator[Failover]:
    """Two servers behind one address, of which the second takes over when the test says so."""
    first, second = (make_redis("--repl-diskless-sync-delay", "0") for _ in range(2))
    with Failover(first, second) as pair:
        yield pair


@pytest.fixture
def shifted_redis() -> Iterator[ShiftedRedis]:
    """A server whose clock the test moves. Skips where there is no C compiler."""
    require_redis()
    with ExitStack() as stack:
        yield stack.enter_context(ShiftedRedis(compiled_shim(stack)))
