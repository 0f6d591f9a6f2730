"""What ``once`` keeps of an answer and how it is made again, without a framework: each rule of it in a table."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest

from distlock_web.locks.function_names import signature_of
from distlock_web.web import kept_answers
from distlock_web.web.kept_answers import MAX_KEPT, NOT_KEPT, REPLAYED, keep, keep_value, replay

HTML, JSON = ("Content-Type", "text/html; charset=utf-8"), ("Content-Type", "application/json")
POLICY, OTHER = ("Content-Security-Policy", "script-src 'nonce-abc'"), ("Content-Security-Policy", "script-src 'self'")
PAGE = b'<script nonce="abc">'


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Mapping[str, Any]]]:
    """What was warned of, and what a program reads of it."""
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [
        (record.getMessage(), {name: value for name, value in vars(record).items() if name.startswith("lock_")})
        for record in caplog.records
    ]


@pytest.mark.parametrize(
    ("status", "header", "body", "follows", "kept"),
    [
        (200, HTML, "é".encode(), False, {"body": "é"}),
        (404, HTML, b"\xff", False, {"base64": "/w=="}),
        (204, JSON, b"", False, {"body": ""}),
        (200, JSON, b"x" * MAX_KEPT, False, {"body": "x" * MAX_KEPT}),
        (200, HTML, PAGE, True, {"body": PAGE.decode()}),
        (200, JSON, PAGE, False, {"body": PAGE.decode()}),
        (200, HTML, b"<p>nonce=1, the novel</p>"[:9], False, {"body": "<p>nonce="}),
        (200, HTML, None, False, "it is streamed"),
        (200, JSON, b"x" * (MAX_KEPT + 1), False, "its body has 65,537 bytes, more than 65,536"),
        (304, JSON, b"", False, "it is for a client that has the page"),
        (200, HTML, PAGE, False, "it has a nonce, and the policy that names it is not the view's"),
        (200, HTML, b"<script\nNONCE ='abc'>".lower(), False, "it has a nonce, and the policy that names it is not"),
    ],
)  # fmt: skip
def test_a_response_is_kept_or_it_is_said_why_not(
    caplog: pytest.LogCaptureFixture,
    status: int,
    header: tuple[str, str],
    body: bytes | None,
    follows: bool,
    kept: dict[str, str] | str,
) -> None:
    found = keep("shop.pay", status, [header, ("Set-Cookie", "a=b")], body, policy_follows=follows)
    assert (found.pop("status"), found.pop("headers")) == (status, [[*header]])
    assert found == (kept if isinstance(kept, dict) else {})
    if isinstance(kept, dict):
        assert said(caplog) == []
    else:
        [(text, fields)] = said(caplog)
        assert text.startswith(f"shop.pay: recorded as done, but without its answer: {kept}")
        assert fields == {"lock_event": "done", "lock_function": "shop.pay"}
    assert kept_answers.is_kept(found) == isinstance(kept, dict)


@pytest.mark.parametrize(("policy", "is_kept"), [(POLICY, True), (OTHER, False)])
def test_a_page_with_a_nonce_is_kept_with_the_policy_that_names_it(policy: tuple[str, str], is_kept: bool) -> None:
    found = keep("shop.pay", 200, [HTML, policy], PAGE)
    assert found["headers"] == [[*HTML], [*policy]]
    assert kept_answers.is_kept(found) == is_kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"paid": 1}, {"paid": 1}),
        (None, None),
        (PAGE.decode(), "it has a nonce, and the policy that names it is not the view's"),
        (f"\ud800{PAGE.decode()}", "it has a nonce, and the policy that names it is not the view's"),
        ({"page": PAGE.decode()}, {"page": PAGE.decode()}),
        (object(), "it has builtins.object, which is no plain data"),
    ],
)
def test_a_value_is_kept_or_it_is_said_why_not(caplog: pytest.LogCaptureFixture, value: object, kept: object) -> None:
    found = keep_value("shop.pay", value, 201, [JSON, ("Set-Cookie", "a=b")])
    assert (found.pop("status"), found.pop("headers")) == (201, [[*JSON]])
    if isinstance(kept, str):
        assert found == {}
        fields = {"lock_event": "done", "lock_function": "shop.pay"}
        assert said(caplog) == [(f"shop.pay: recorded as done, but without its answer: {kept}.", fields)]
    else:
        assert found == {"value": kept}
        assert said(caplog) == []
    assert kept_answers.is_kept(found) == ("value" in found)


def test_a_value_is_a_200_without_headers_if_nothing_is_said_of_it(caplog: pytest.LogCaptureFixture) -> None:
    assert keep_value("shop.pay", 1) == {"status": 200, "headers": [], "value": 1}
    assert kept_answers.not_kept("shop.pay", "it is odd") == {"status": 200, "headers": []}
    fields = {"lock_event": "done", "lock_function": "shop.pay"}
    assert said(caplog) == [("shop.pay: recorded as done, but without its answer: it is odd.", fields)]


@pytest.mark.parametrize(
    ("result", "keeps_result", "warns"), [(1, False, True), (1, True, False), (None, False, False)]
)
def test_of_a_result_that_is_lost_it_is_warned(
    caplog: pytest.LogCaptureFixture, result: object, keeps_result: bool, warns: bool
) -> None:
    locked = SimpleNamespace(name="shop.helper", once=SimpleNamespace(keeps_result=keeps_result))
    kept_answers.warn_of_lost(result, locked)
    found = said(caplog)
    assert [text.partition(" It ")[0] for text, _ in found] == (
        ["shop.helper was called in a request and is not its view."] if warns else []
    )
    assert [fields for _, fields in found] == [{"lock_event": "done", "lock_function": "shop.helper"}] * warns


BODY_HEADERS = [["ETag", '"1"'], ["Content-Type", "text/html"], ["X-Frame-Options", "DENY"]]
ANOTHER = [("X-Frame-Options", "DENY"), ("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]


@pytest.mark.parametrize(
    ("status", "body", "again"),
    [
        (201, {"body": "é"}, (201, "é".encode())),
        (206, {"base64": "/w=="}, (206, b"\xff")),
        (200, {}, (200, NOT_KEPT.encode())),
        (404, {}, (404, NOT_KEPT.encode())),
        (204, {}, (204, b"")),
        (206, {}, (200, NOT_KEPT.encode())),
        (304, {}, (200, NOT_KEPT.encode())),
    ],
)
def test_the_answer_is_made_again_or_a_line_stands_there(
    status: int, body: dict[str, str], again: tuple[int, bytes]
) -> None:
    made = replay({"status": status, "headers": BODY_HEADERS, **body})
    assert (made.status, made.body) == again
    headers = [(name, value) for name, value in BODY_HEADERS] if body else ANOTHER
    assert made.headers == [*headers, (REPLAYED, "true")]
    assert made.says_type
    assert not made._replace(headers=[("X-Content-Type", "1"), (REPLAYED, "true")]).says_type


class Answer(dict[str, int]):
    """A response of a framework."""


def one(request: str) -> Answer: ...  # type: ignore[empty-body]


def generic(request: str) -> list_of[int]: ...  # type: ignore[empty-body]


def unknown(request: str) -> Absent: ...  # type: ignore[name-defined]  # noqa: F821


def unsaid(request): ...  # type: ignore[no-untyped-def]


def given(request: str, response: Answer) -> None: ...


list_of = list
#: As it is without ``from __future__ import annotations``.
EVALUATED = SimpleNamespace(__annotations__={"return": dict[str, int]})
OF_C = SimpleNamespace(__annotations__={"return": "Answer"})


@pytest.mark.parametrize(
    ("function", "returns"),
    [
        (one, Answer), (generic, list), (unknown, object), (unsaid, object), (given, object), (EVALUATED, dict),
        (OF_C, object), (object(), object),
    ],
)  # fmt: skip
def test_the_class_that_a_function_says_it_returns(function: Any, returns: type) -> None:
    assert kept_answers.returned_class(function) is returns


@pytest.mark.parametrize(
    ("function", "response", "is_given"),
    [(given, dict, True), (given, Answer, True), (given, list, False), (unsaid, dict, False), (one, dict, False)],
)
def test_who_is_given_a_response_sets_headers_that_are_not_seen(function: Any, response: type, is_given: bool) -> None:
    locked = SimpleNamespace(function=function, keys=SimpleNamespace(signature=signature_of(function)))
    assert kept_answers.is_given(locked, response) is is_given


def test_the_field_of_a_form_has_a_value_of_its_own_and_hides_no_markup() -> None:
    first, second = kept_answers.hidden_field(), kept_answers.hidden_field('"><b>')
    assert first.startswith('<input type="hidden" name="once" value="')
    assert first.endswith('">')
    assert "<b>" not in second
    assert 'name=""><b>"' in unescape(second)
    values = [field.rpartition('value="')[2] for field in (first, second)]
    assert len(values[0]) == len(values[1]) == len('0123456789abcdef012345">'), "128 bits: nobody guesses it"
    assert values[0] != values[1]
