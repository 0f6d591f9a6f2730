"""Event loops that end, or are closed, while their tasks wait: nobody is handed a lock who will never run again."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from distlock_web import lock
from distlock_web.backends.redis.transport import listener as listener_module
from distlock_web.core.registry import registry
from tests.support.callers import Beside, threads, unrelated
from tests.support.redis_lock import KEY, left_behind, queued, waiters
from tests.support.waiting import LONG, SOON, eventually

pytestmark = [
    pytest.mark.usefixtures("redis_store"),
    # What asyncio and the interpreter say of tasks that are thrown away: the test throws them away.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def abandon(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., None]]:
    """Let a task wait for the lock, and close its loop without a word to it."""
    loops: list[tuple[asyncio.AbstractEventLoop, Any]] = []

    def run(client: redis.Redis) -> None:
        async def wait() -> None:
            async with lock(KEY, expire=LONG, wait=LONG):
                pass

        async def until_it_waits() -> None:
            await asyncio.to_thread(queued, client, KEY)

        loop = asyncio.new_event_loop()
        loops.append((loop, loop.create_task(wait())))
        loop.run_until_complete(until_it_waits())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    yield run
    caplog.set_level(logging.CRITICAL, "asyncio")
    loops.clear()
    backend: Any = registry().store("default").backend
    backend.server.loops._by_loop.clear()  # what it had open in them: collected here, and not in another test
    gc.collect()


def test_a_closed_loops_waiter_does_not_get_the_lock(
    redis_client: redis.Redis, beside: Beside, abandon: Callable[..., None]
) -> None:
    """It was given to it for a whole lease, although the wake-up failed visibly."""
    holder = unrelated(KEY)
    abandon(redis_client)
    waiting = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
    queued(redis_client, KEY, 2)
    holder.release()
    waiting.result(SOON).release()
    eventually(lambda: left_behind(redis_client) == {}, "nothing is left")


def test_a_closed_loops_waiter_does_not_stay(
    redis_client: redis.Redis, abandon: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed in the listener, and with it the thread and the connection, for good."""
    monkeypatch.setattr(listener_module, "IDLE_TIMEOUT", 0.1)
    holder = unrelated(KEY)
    abandon(redis_client)
    backend: Any = registry().store("default").backend
    eventually(lambda: not backend.server.listener.waiters, "the waiter is forgotten", SOON)
    eventually(lambda: waiters(redis_client) == 0, "its place is given up", SOON)
    eventually(lambda: threads("distlock-listener") == 0, "the thread ends", SOON)
    holder.release()
    assert left_behind(redis_client) == {}
