"""The request id: read by people, never trusted."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading

import pytest

from distlock_web import current_request_id
from distlock_web.core import request_id
from distlock_web.core.holder import HolderInfo


@pytest.mark.parametrize(
    "header",
    [
        "a",
        "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "Root=1-67891233-abcdef012345678912345678",
        "00-4bf9-00f0-01",
        "x" * 128,
    ],
)
def test_usual_ids_are_taken(header: str) -> None:
    assert request_id.accept(header) == header


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", " ", "a b", "a;b", "a,b", '"', "<script>", "ä", "٣"),
        *("x" * 129, "x" * 100_000, "a\r\nSet-Cookie: b", "a\n", "a\0"),
    ],
)
def test_anything_else_is_replaced_by_a_fresh_one(header: str | None) -> None:
    made = {request_id.accept(header) for _ in range(2)}
    assert len(made) == 2
    assert header not in made
    assert all(len(each) == 32 and each.isalnum() for each in made)


def test_it_is_bound_to_the_running_context() -> None:
    request_id.bind("outer", "GET /")
    inner = contextvars.copy_context()
    inner.run(request_id.bind, "inner")
    assert current_request_id() == "outer"
    assert inner.run(current_request_id) == "inner"
    origin = request_id.current_origin()
    assert origin is not None
    assert origin.path == "GET /"


def test_outside_a_request_one_is_made_and_kept() -> None:
    first = current_request_id()
    assert current_request_id() == first
    request_id.clear()
    assert request_id.current_origin() is None
    assert current_request_id() != first


def test_a_cleared_thread_does_not_remember() -> None:
    seen = []

    def worker() -> None:
        for name in ("one", "two"):
            seen.append(request_id.current_origin())
            request_id.bind(name)
            request_id.clear()

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    assert seen == [None, None]


def test_tasks_of_a_request_share_its_id() -> None:
    async def child() -> str:
        return current_request_id()

    async def request(name: str) -> None:
        request_id.bind(name)
        assert await asyncio.gather(child(), child()) == [name, name]

    async def both() -> None:
        await asyncio.gather(request("one"), request("two"))

    asyncio.run(both())


def test_the_filter_puts_it_on_every_record() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "hello", (), None)
    assert request_id.RequestIDFilter().filter(record)
    assert vars(record)["request_id"] == "-"
    request_id.bind("r-1")
    assert request_id.RequestIDFilter().filter(record)
    assert vars(record)["request_id"] == "r-1"


def test_a_holder_comes_back_as_it_was_written() -> None:
    request_id.bind('r"1', "GET /é\n" + "x" * 10_000)
    holder = HolderInfo.loads(HolderInfo.current("view", 10.0))
    assert (holder.request_id, holder.function, holder.expire) == ('r"1', "view", 10.0)
    assert holder.path.startswith("GET /é\n")
    assert len(holder.path) == 200
    assert holder.pid > 0


@pytest.mark.parametrize(
    "words", ["", "a holder", "[]", "{}", "[1, 2, 3]", "null", '["", "", "", "", "x", 1]', "\ud800"]
)
def test_a_holder_in_foreign_words_is_empty(words: str) -> None:
    assert HolderInfo.loads(words) == HolderInfo()
