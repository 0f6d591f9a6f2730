"""The request id: read by people, never trusted."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest

from distlock_web import ConfigurationError, current_request_id, request_scope
from distlock_web.core import request_id
from distlock_web.core.request_id import HolderInfo, Origin, request_token
from distlock_web.web.request_ids import WebRequestBounds
from tests.support.origins import begin_request, end_request


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
    assert Origin.new(header).request_id == header


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", " ", "a b", "a;b", "a,b", '"', "<script>", "ä", "٣"),
        *("x" * 129, "x" * 100_000, "a\r\nSet-Cookie: b", "a\n", "a\0"),
    ],
)
def test_anything_else_is_replaced_by_a_fresh_one(header: str | None) -> None:
    made = {Origin.new(header).request_id for _ in range(2)}
    assert len(made) == 2
    assert header not in made
    assert all(len(each) == 32 and each.isalnum() for each in made)


def test_outside_a_request_one_is_made_and_kept() -> None:
    first = current_request_id()
    assert current_request_id() == first
    end_request()
    assert request_id.current_origin() is None
    assert current_request_id() != first


class FrameworkRequest:
    request_id = "r-2"


def test_a_record_about_a_request_that_is_over_has_its_id() -> None:
    """Django logs a 404 when the middleware has ended; of another library's request nothing is known."""
    for request, expected in ((FrameworkRequest(), "r-2"), (object(), "-"), (None, "-")):
        record = logging.makeLogRecord({"request": request})
        request_id.RequestIDFilter().filter(record)
        assert vars(record)["request_id"] == expected
    begin_request("r-1")
    for request, expected in ((FrameworkRequest(), "r-2"), (object(), "r-1"), (None, "r-1"), (flask.request, "r-1")):
        record = logging.makeLogRecord({"request": request})
        request_id.RequestIDFilter().filter(record)
        assert vars(record)["request_id"] == expected


# The request's own token --------------------------------------------------------------------------------------------


def test_the_next_request_of_a_thread_has_another_token() -> None:
    found = []
    for _ in range(2):
        bounds = WebRequestBounds("the-same", "GET /")
        for _ in range(2):  # its body, streamed later
            outer = bounds.enter()
            found.append(request_token())
            bounds.leave(outer)
    assert found[0] == found[1] != found[2] == found[3]


def test_outside_of_a_request_a_thread_and_a_task_have_their_own() -> None:
    def twice() -> tuple[str, str]:
        return request_token(), request_token()

    async def task() -> tuple[str, str]:
        return twice()

    async def tasks() -> list[tuple[str, str]]:
        return list(await asyncio.gather(task(), task()))

    with ThreadPoolExecutor(1) as pool:
        pairs = contextvars.Context().run(asyncio.run, tasks())
        pairs += [pool.submit(twice).result(), contextvars.Context().run(twice)]
    assert all(first == second for first, second in pairs)
    assert len({first for first, _ in pairs}) == 4


def test_an_id_that_is_made_later_changes_nothing_of_the_token() -> None:
    before = request_token()
    assert current_request_id()
    assert request_token() == before


def test_a_holder_has_the_beginning_of_the_token_and_no_more() -> None:
    begin_request("r-1")
    text = HolderInfo.current("view", 10.0)
    assert HolderInfo.loads(text).request == request_token()[:8]
    assert request_token()[:9] not in text
    end_request()
    assert HolderInfo.loads(HolderInfo.current()).request == request_token()[:8]


# A request of one's own ---------------------------------------------------------------------------------------------


def test_a_task_has_an_id_and_a_token_of_its_own() -> None:
    begin_request("outer", "GET /")
    outside = request_token()
    with request_scope("job-17", "send_invoice") as given:
        origin = request_id.current_origin()
        assert origin is not None
        assert (current_request_id(), origin.path, given) == ("job-17", "send_invoice", "job-17")
        assert request_token() != outside
    assert (current_request_id(), request_token()) == ("outer", outside)


def test_left_out_it_is_fresh() -> None:
    with request_scope() as first, request_scope() as second:
        assert len(first) == len(second) == 32
        assert first != second == current_request_id()
    assert request_id.current_origin() is None


@pytest.mark.parametrize("nonsense", ["", "a b", "x" * 129, "a\n", 7, b"job"])
def test_an_id_that_no_header_could_have_is_refused(nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"request_id is .*1 to 128 characters"):
        request_scope(nonsense)


# Holders ------------------------------------------------------------------------------------------------------------


def test_a_holder_comes_back_as_it_was_written() -> None:
    begin_request('r"1', "GET /é\n" + "x" * 10_000)
    holder = HolderInfo.loads(HolderInfo.current("view", 10.0))
    assert (holder.request_id, holder.function, holder.expire) == ('r"1', "view", 10.0)
    assert holder.path.startswith("GET /é\n")
    assert len(holder.path) == 200
    assert holder.pid > 0


@pytest.mark.parametrize(
    "words",
    [
        "", "a holder", "[]", "{}", "[1, 2, 3]", "null", '["", "", "", "", "x", 1, ""]', "\ud800", "[" * 100_000,
        '["", "", "", "", Infinity, 1, ""]', f'["", "", "", "", 1, {"9" * 400}, ""]',
    ],
)  # fmt: skip
def test_a_holder_in_foreign_words_is_empty(words: str) -> None:
    assert HolderInfo.loads(words) == HolderInfo()


def test_a_holder_in_one_line() -> None:
    assert HolderInfo("r-1", "GET /", "shop.pay", "web-1", 7).describe() == "shop.pay on web-1 (pid 7), request r-1"
    assert HolderInfo(path="GET /", host="web-1", pid=7).describe() == "GET / on web-1 (pid 7)"
    assert HolderInfo().describe() == ""
    assert HolderInfo(path="GET /\n2026 forged\x1b").describe().isprintable()
