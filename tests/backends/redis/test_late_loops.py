"""An event loop that is late is neither a server that is silent nor a clock that was set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from distlock_web import configure, lock

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
    """It was refused as an outage, or as a clock that was set."""
    async with lock("first"):
        pass
    async with late(turn):
        for number in range(2):
            async with lock(f"free:{number}", expire=30):
                pass
