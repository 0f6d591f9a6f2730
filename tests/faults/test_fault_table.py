"""One table, faults × stores: what a server does to us when it fails is the same, whatever it is.

A column is a store (``tests/support/faulty_stores.py``), a row is a test. What only one store knows is in
``tests/backends``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from distlock_web import BackendUnavailable, Lease, LockBusy, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.testing.harness import HARNESSES, Harness
from tests.support.callers import unrelated
from tests.support.faulty_stores import FAULTY_STORES, FaultyStore
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.slow

KEY = "order:7"


#: Where tasks have their requests sent by threads, what holds for threads holds for them.
CELLS = [
    pytest.param(name, mode, marks=pytest.mark.nightly if name == "etcd" else ())  # the example for authors of stores
    for name in FAULTY_STORES
    for mode in HARNESSES
    if mode == "threads" or name in ("redis", "redlock")
]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    """The default store, of this test alone, which works."""
    with FAULTY_STORES[request.param](request) as made:
        eventually(lambda: can_take("first"), "it is warm")
        yield made
        registry().close()


def on_every_store(test: Callable[[Harness, FaultyStore], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @pytest.mark.parametrize(("store", "mode"), CELLS, indirect=["store"])
    def run(store: FaultyStore, mode: str) -> None:
        harness = HARNESSES[mode](registry().store("default"))
        harness.run(test(harness, store))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def can_take(key: str) -> bool:
    """Whether the lock is free, and the store answers. Asked in a thread: the test may be in an event loop."""

    def taken() -> bool:
        try:
            unrelated(key).release()
        except (BackendUnavailable, LockBusy):
            time.sleep(0.01)
            return False
        return True

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(taken).result()


async def warm_up(harness: Harness) -> None:
    """Some connections are open, and idle."""

    async def use(number: int) -> None:
        async with harness.inside(lock(f"warm:{number}")):
            await harness.sleep(0.05)

    actors = [harness.unrelated(lambda number=number: use(number)) for number in range(4)]  # type: ignore[misc]
    for actor in actors:
        await actor.result()


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


@pytest.mark.parametrize("store", ["redis", "redlock", "zookeeper"], indirect=True)  # SQL has ZooKeeper's port
async def test_a_late_loop_takes_a_free_lock(store: FaultyStore) -> None:
    async with lock("first"):
        pass
    async with late(1.5 * store.timeout), lock(KEY, expire=LONG):
        pass


@on_every_store
async def test_dead_idle_connections_cost_nobody_a_refusal(harness: Harness, store: FaultyStore) -> None:
    await warm_up(harness)
    store.forget_connections()
    async with harness.inside(lock(KEY, expire=LONG)):
        store.forget_connections()
    assert can_take(KEY)


@on_every_store
async def test_a_restart_costs_nobody_a_refusal_afterwards(harness: Harness, store: FaultyStore) -> None:
    await warm_up(harness)
    store.restart()
    async with harness.inside(lock(KEY, expire=LONG)):
        pass


async def refused(harness: Harness, key: str) -> float:
    """The seconds after which an acquisition is refused."""
    begun = now()
    with pytest.raises(BackendUnavailable):
        await harness.acquire(lock(key, expire=LONG))
    return now() - begun


async def is_silent(harness: Harness, store: FaultyStore) -> None:
    """One request pays for knowing it, the next are refused at once."""
    first = await refused(harness, KEY)
    assert store.timeout / 2 < first < 4 * store.timeout + SOON
    later = sorted([await refused(harness, KEY) for _ in range(20)])
    assert later[len(later) // 2] < first / 20


async def until(harness: Harness, lease: Lease, state: str) -> None:
    async def seen() -> bool:
        return lease.state == state

    await harness.until(seen)


@on_every_store
async def test_a_server_that_is_stopped_is_silent_until_it_is_resumed(harness: Harness, store: FaultyStore) -> None:
    """What could not be given back meanwhile is given back, and what was taken for nobody; a renewal goes on."""
    held = await harness.acquire(lock("held", expire=LONG))
    renewed = await harness.acquire(lock("renewed", expire=9.0, renew=True))
    with store.stopped():
        await is_silent(harness, store)
        with suppress(BackendUnavailable):
            await harness.release(held)
        await until(harness, renewed, "unsure")
    await until(harness, renewed, "held")
    eventually(lambda: can_take("held"), "it is given back", SOON)
    eventually(lambda: can_take(KEY), "it is nobody's", SOON)
    await harness.release(renewed)


@on_every_store
async def test_a_server_that_answers_reads_and_no_writes_is_silent(harness: Harness, store: FaultyStore) -> None:
    await warm_up(harness)
    with store.writes_hang():
        await is_silent(harness, store)
    eventually(lambda: can_take(KEY), "it is nobody's", SOON)


@on_every_store
async def test_a_lost_answer_leaves_no_lock_to_nobody(harness: Harness, store: FaultyStore) -> None:
    """That to an acquisition, and that to a release."""

    async def lost(answers: int) -> bool:
        return store.lost == answers

    await warm_up(harness)
    store.lose_answer()
    async with harness.inside(lock(KEY, expire=LONG)) as lease:
        await harness.until(partial(lost, 1))
        lease.raise_if_lost()
        store.lose_answer()
    await harness.until(partial(lost, 2))  # an event loop goes on meanwhile: the release may be on its way there
    eventually(lambda: can_take(KEY), "it is nobody's", SOON)


@contextmanager
def no_threads() -> Iterator[None]:
    """The system has no room for another thread of ours, or of our executors."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("distlock"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield


@on_every_store
async def test_where_no_thread_can_be_started_locks_work_or_are_refused(harness: Harness, store: FaultyStore) -> None:
    """A request raised RuntimeError; or the thread was taken for one that runs, and all were refused for ever."""
    registry().close()  # with its threads
    with no_threads():
        for wait in (0, 0.1):
            with suppress(BackendUnavailable):
                async with harness.inside(lock(KEY, expire=LONG, wait=wait)):
                    pass
    with suppress(BackendUnavailable):
        async with harness.inside(lock("other")):
            pass
    with no_threads(), store.stopped():
        await refused(harness, KEY)
    eventually(lambda: can_take(KEY), "all is well", SOON)
