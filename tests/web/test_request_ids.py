"""The request id: in, around everything a request does, out, and gone; in Django and in Flask."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import RequestFactory
from flask import Flask

from distlock_web import ConfigurationError, aheld_locks, current_request_id, held_locks, lock, request_scope
from distlock_web.core.request_id import RequestIDFilter, current_origin
from distlock_web.django.middleware import RequestIDMiddleware
from distlock_web.flask import DistLock
from tests.support.both import SITES, Get, View, serving, urls
from tests.support.origins import begin_request

HOSTILE = {
    "100 kB": "a" * 100_000,
    "129 characters": "a" * 129,
    "CR LF": "abc\r\nSet-Cookie: a=b",
    "LF": "abc\n",
    "not ASCII": "prüfung",
    "digits of another script": "١٢٣".encode().decode("latin-1"),
    "NUL": "a\0b",
    "markup": "<script>alert(1)</script>",
    "a space": "a b",
    "two headers, joined": "a, b",
    "empty": "",
}


async def acurrent() -> str:
    return current_request_id()


def broken() -> str:
    assert current_request_id() == "seven"
    raise ValueError("the view's own")


def busy() -> str:
    raise AssertionError


def own() -> tuple[str, dict[str, str]]:
    return "", {"Req-Id": "its-own"}


def log() -> str:
    logging.getLogger("shop").warning("sold out")
    return ""


def reset(uid: str, token: str) -> str:
    [held] = held_locks()
    return f"{held.holder.request_id} {held.holder.path}"


async def areset(uid: str, token: str) -> str:
    [held] = await aheld_locks()
    return f"{held.holder.request_id} {held.holder.path}"


VIEWS = {
    "id/": View(current_request_id),
    "aid/": View(acurrent),
    "broken/": View(broken),
    "own/": View(own),
    "log/": View(log),
    "busy/": View(busy, {"key": "busy"}),
    "reset/<uid>/<token>/": View(reset, {"key": "reset"}),
    "areset/<uid>/<token>/": View(areset, {"key": "reset"}),
}
urlpatterns = urls(VIEWS)
pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture(params=SITES)
def get(request: pytest.FixtureRequest, settings: Any) -> Iterator[Get]:
    with serving(request.param, __name__, VIEWS, settings) as get:
        yield get


@pytest.mark.parametrize("address", ["id/", "aid/"])
def test_the_id_of_the_client_goes_through_and_comes_back(get: Get, address: str) -> None:
    answer = get(address, **{"Req-Id": "00-4bf92f3577b34da6-01/a"})
    assert answer.text == answer.headers["Req-Id"] == "00-4bf92f3577b34da6-01/a"


@pytest.mark.parametrize("address", ["id/", "aid/"])
def test_without_one_a_fresh_one_is_made_each_time(get: Get, address: str) -> None:
    first, second = get(address), get(address)
    assert first.text == first.headers["Req-Id"] != second.text
    assert len(first.text) == 32


@pytest.mark.parametrize("given", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_id_is_ignored_and_a_fresh_one_made(get: Get, given: str) -> None:
    answer = get("id/", **{"Req-Id": given})
    assert (answer.status, len(answer.text)) == (200, 32)
    assert answer.headers["Req-Id"] == answer.text
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("site", SITES)
def test_another_header(site: str, settings: Any) -> None:
    settings.DISTLOCK_REQUEST_ID_HEADER = "X-Request-ID"
    with serving(site, __name__, VIEWS, settings) as get:
        answer = get("id/", **{"X-Request-ID": "abc", "Req-Id": "not this"})
    assert answer.text == answer.headers["X-Request-ID"] == "abc"
    assert "Req-Id" not in answer.headers


@pytest.mark.parametrize("header", ["Req_Id", "", "Req Id", "Req-Id\n", None, b"Req-Id", "Ré"])
def test_a_header_that_could_never_arrive_is_refused(header: object, settings: Any) -> None:
    app = Flask("shop")
    app.config["DISTLOCK_REQUEST_ID_HEADER"] = settings.DISTLOCK_REQUEST_ID_HEADER = header
    says = r"DISTLOCK_REQUEST_ID_HEADER is .*letters, digits and hyphens"
    with pytest.raises(ConfigurationError, match=says):
        DistLock(app)
    with pytest.raises(ConfigurationError, match=says):
        RequestIDMiddleware(lambda request: None)(RequestFactory().get("/"))


def test_an_id_that_the_view_answers_itself_is_kept(get: Get) -> None:
    assert get("own/", **{"Req-Id": "the-clients"}).headers["Req-Id"] == "its-own"


@pytest.mark.parametrize(("address", "status"), [("nowhere/", 404), ("broken/", 500), ("id/", 200)])
def test_every_answer_has_it_and_afterwards_it_is_gone(get: Get, address: str, status: int) -> None:
    answer = get(address, **{"Req-Id": "seven"})
    assert (answer.status, answer.headers["Req-Id"]) == (status, "seven")
    assert current_origin() is None


@pytest.mark.parametrize("get", ["django, wsgi", "flask"], indirect=True)
def test_the_origin_of_a_caller_comes_back(get: Get) -> None:
    begin_request("outer", "a job")
    get("id/")
    assert current_request_id() == "outer"


def test_every_log_record_has_it(get: Get, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(RequestIDFilter())
    get("log/", **{"Req-Id": "seven"})
    logging.getLogger("shop").warning("outside")
    found = {record.message: vars(record)["request_id"] for record in caplog.records if record.name == "shop"}
    assert found == {"sold out": "seven", "outside": "-"}


@pytest.mark.parametrize(
    ("address", "loggers"), [("nowhere/", set()), ("broken/", {"shop"}), ("busy/", {"distlock_web"})]
)
def test_also_those_that_a_framework_writes_afterwards(
    get: Get,
    request: pytest.FixtureRequest,
    elsewhere: Any,
    caplog: pytest.LogCaptureFixture,
    address: str,
    loggers: set[str],
) -> None:
    """Django's own lines on a 404 and a 409 had no id: the middleware has ended by then."""
    elsewhere("busy")
    caplog.handler.addFilter(RequestIDFilter())
    caplog.set_level("INFO", "distlock_web")
    get(address, **{"Req-Id": "seven"})
    if "django" in request.node.name:
        loggers = {"django.request", *loggers} - {"shop"}
    found = {(record.name, vars(record)["request_id"]) for record in caplog.records if record.name != "asyncio"}
    assert found == {(name, "seven") for name in loggers}


def test_two_requests_with_the_same_id_exclude_each_other(get: Get) -> None:
    with request_scope("seven"):
        lock("busy").acquire().detach()
        assert get("busy/", **{"Req-Id": "seven"}).status == 409


@pytest.mark.parametrize("view", ["reset", "areset"])
def test_a_locks_holder_says_the_id_and_of_the_url_only_the_route(get: Get, view: str) -> None:
    answer = get(f"{view}/MQ/s3cret/?x=s3cret", **{"Req-Id": "seven"})
    assert answer.text == f"seven GET /{view}/<uid>/<token>/"
