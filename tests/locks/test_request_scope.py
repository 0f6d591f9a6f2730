"""``request_scope`` and locks: a job is a request of its own, and begins inside of none."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from distlock_web import ConfigurationError, LockBusy, current_lease, current_request_id, lock, request_scope
from distlock_web.core.request_id import current_origin, request_token

pytestmark = pytest.mark.usefixtures("memory_store")


def test_a_lock_around_a_job_is_not_entered_again() -> None:
    with lock("a") as outer:
        with request_scope("job"):
            assert current_lease() is None
            with pytest.raises(LockBusy):
                lock("a").acquire()
        assert current_lease() == outer
        with lock("a") as nested:
            assert nested.depth == 2


def test_what_one_job_leaves_behind_is_not_the_next_one_s() -> None:
    with request_scope("one"):
        left = lock("a").acquire()
    with request_scope("two"), pytest.raises(LockBusy):
        lock("a").acquire()
    assert current_lease() is None
    left.release()


# As a decorator -----------------------------------------------------------------------------------------------------


async def test_a_coroutine_function_runs_inside() -> None:
    """The scope was over before the body ran: its locks were those of whoever awaited it."""

    @request_scope("job-17", "send_invoice")
    async def work(number: int) -> tuple[int, str, str]:
        """What it does."""
        await asyncio.sleep(0)
        assert current_lease() is None
        with pytest.raises(LockBusy):
            await lock("a").aacquire()
        return number, current_request_id(), request_token()

    assert inspect.iscoroutinefunction(work)
    assert (work.__name__, work.__doc__) == ("work", "What it does.")
    async with lock("a"):
        one, other = await asyncio.gather(work(1), work(number=2))
        assert current_lease() is not None
    assert (one[:2], other[:2]) == ((1, "job-17"), (2, "job-17"))
    assert len({one[2], other[2], request_token()}) == 3
    assert current_origin() is None


def chunks() -> Iterator[int]:
    yield 1


async def achunks() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [chunks, achunks, partial(chunks)])
def test_a_generator_is_refused(function: Any) -> None:
    """Its body runs when the scope is over, step by step, between those of who reads it."""
    with pytest.raises(ConfigurationError, match=r"request_scope cannot be around the generator .*chunks"):
        request_scope("job-17")(function)


def test_without_parentheses_it_is_refused() -> None:
    """The function became the id of a scope that nobody entered, and its calls did nothing."""
    for function in (lambda: 1, chunks, Any):
        with pytest.raises(ConfigurationError, match=r"@request_scope\(\), with parentheses"):
            request_scope(function)  # type: ignore[arg-type]


async def test_a_forgotten_job_that_is_garbage_changes_nothing_for_whoever_runs_then() -> None:
    """It put back what was bound around it, in the task that happened to run: that was inside of others' locks then."""

    @request_scope("forgotten")
    async def forgotten() -> None:
        await asyncio.get_running_loop().create_future()  # which nobody else knows

    async def somebody_else() -> None:
        with request_scope("else"):
            gc.collect()
            assert current_request_id() == "else"
            with pytest.raises(LockBusy):
                await lock("a").aacquire()
            assert await lock("b").aacquire(), "its own"

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # "Task was destroyed"
    outside = contextvars.copy_context()
    async with lock("a"):
        asyncio.create_task(forgotten())  # noqa: RUF006 - that is what this is about
        await asyncio.create_task(somebody_else(), context=outside)
        assert current_origin() is None


async def test_nor_for_a_task_that_it_has_begun() -> None:
    """Which has inherited all that it had bound, and was put inside of the locks around it."""
    begun: list[asyncio.Task[None]] = []

    async def child() -> None:
        await asyncio.sleep(0)
        gc.collect()
        assert current_request_id() == "forgotten"
        with pytest.raises(LockBusy):
            await lock("a").aacquire()

    @request_scope("forgotten")
    async def forgotten() -> None:
        begun.append(asyncio.create_task(child()))
        await asyncio.get_running_loop().create_future()  # which nobody else knows

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # "Task was destroyed"
    async with lock("a"):
        asyncio.create_task(forgotten())  # noqa: RUF006 - that is what this is about
        await asyncio.sleep(0)
        await begun.pop()


def test_an_object_that_is_entered_twice_is_refused() -> None:
    scope = request_scope("job-17")
    with scope:
        with pytest.raises(ConfigurationError, match="entered already"), scope:
            pass
        assert current_request_id() == "job-17"
    with scope as again:
        assert again == "job-17"
    assert current_origin() is None
