"""An event loop that is late is neither a server that is silent nor a clock that was set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from distlock_web import configure, lock
from distlock_web.backends.redis.transport.clock import ServerClock
from distlock_web.core.runtime import now

pytestmark = pytest.mark.slow

TIMEOUT = 0.5


@pytest.fixture(autouse=True)
def _impatient(redis_url: str) -> None:
    configure({"default": {"LOCATION": redis_url, "OPTIONS": {"socket_timeout": TIMEOUT}}})


@asynccontextmanager
async def late(seconds: float) -> AsyncIterator[None]:
    """Each turn of the loop takes so long: somebody's callback computes, or waits for a file."""
    ended = asyncio.Event()

    async def hog() -> None:
        while not ended.is_set():
            time.sleep(seconds)  # noqa: ASYNC251 - to be late is what it is for
            await asyncio.sleep(0)

    busy = asyncio.create_task(hog())
    try:
        yield
    finally:
        ended.set()
        await busy


@pytest.mark.parametrize("turn", [0.8 * TIMEOUT, 1.5 * TIMEOUT])
async def test_a_free_lock_is_taken_in_a_loop_that_is_late(turn: float) -> None:
    """ "The clock of Redis changed": its time was paired with ours of when the answer was read, and not asked for."""
    async with lock("first"):
        pass
    async with late(turn):
        for number in range(2):
            async with lock(f"free:{number}", expire=30):
                pass


def test_only_a_clock_that_was_set_moves_what_is_known_of_it() -> None:
    """After an outage the next request was meant until a second too late: its copy took the lock for nobody."""
    clock, second = ServerClock(), 1_000_000
    clock.heard(int(now() * second) + second, now())
    known = clock.ahead_us
    clock.heard(int((now() - 5) * second) + second, now() - 5.1)  # read late, by a loop
    clock.heard(int(now() * second) + second, now() - 5)  # given late, by a server that stood still
    assert clock.ahead_us == pytest.approx(known, abs=second)
    clock.heard(int(now() * second) + 100 * second, now())
    assert clock.ahead_us == pytest.approx(100 * second, abs=second)
