"""The pairs: what threads and asyncio each do in their own way."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from distlock_web.core.runtime import TASKS, TaskParker, ThreadParker, drive


def test_drive_refuses_a_coroutine_that_suspends_and_closes_it() -> None:
    closed = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="suspended"):
        drive(suspends())
    assert closed == [True]


def test_a_wake_up_before_the_sleep_is_not_lost() -> None:
    parker = ThreadParker()
    parker.unpark()
    parker.unpark()  # two before the sleep are one
    assert drive(parker.park(60)) is True
    assert drive(parker.park(0.01)) is False

    async def task() -> None:
        parker = TaskParker()
        parker.unpark()
        parker.unpark()
        assert await parker.park(60) is True
        assert await parker.park(0.01) is False

    asyncio.run(task())


def test_a_wake_up_from_another_thread_ends_the_sleep() -> None:
    parker = ThreadParker()
    thread = threading.Timer(0.01, parker.unpark)
    thread.start()
    assert drive(parker.park(None)) is True
    thread.join()

    async def task() -> None:
        parker = TaskParker()
        thread = threading.Timer(0.01, parker.unpark)
        thread.start()
        assert await parker.park(None) is True
        thread.join()

    asyncio.run(task())


def test_waking_a_sleeper_whose_loop_is_gone_harms_nobody() -> None:
    async def task() -> TaskParker:
        return TaskParker()

    asyncio.run(task()).unpark()


def test_a_negative_time_is_over_already() -> None:
    assert drive(ThreadParker().park(-5)) is False


async def test_finish_runs_to_the_end_and_then_says_that_it_was_cancelled() -> None:
    steps: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        steps.append("begun")
        begun.set()
        await asyncio.sleep(0.02)
        steps.append("ended")

    task = asyncio.create_task(TASKS.shield(work()))
    await begun.wait()
    for _ in range(3):  # a client that goes away, a server that shuts down, a timeout: all at once
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begun", "ended"]


async def test_finish_leaves_no_error_unseen_when_cancelled() -> None:
    """Otherwise asyncio would log "exception was never retrieved" for every cancelled release on a dead store."""
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context))

    async def work() -> None:
        await asyncio.sleep(0.01)
        raise LookupError

    task = asyncio.create_task(TASKS.shield(work()))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    del task
    await asyncio.sleep(0)
    assert seen == []
