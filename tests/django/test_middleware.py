"""The request id's way in, through and out; and the answers to a request that cannot run under its lock."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import include, path, re_path

from distlock_web import ConfigurationError, aheld_locks, distributed_lockable, held_locks, lock
from distlock_web.core import request_id
from distlock_web.core.registry import registry
from distlock_web.django.logging import RequestIDFilter
from distlock_web.django.middleware import RequestIDMiddleware
from distlock_web.web.held_locks import list_all

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


def get(path: str, mode: str, **options: Any) -> Any:
    if mode == "sync":
        return Client(raise_request_exception=False).get(path, **options)
    return asyncio.run(AsyncClient(raise_request_exception=False).get(path, **options))


modes = pytest.mark.parametrize("mode", ["sync", "async"])
pytestmark = pytest.mark.usefixtures("memory")


@modes
@pytest.mark.parametrize("view", ["without-lock", "without-lock-async"])
def test_the_id_of_the_client_goes_through_and_comes_back(mode: str, view: str) -> None:
    response = get(f"/shop/{view}/", mode, headers={"Req-Id": "00-4bf92f3577b34da6-01"})
    assert response["Req-Id"] == response.json()["request_id"] == "00-4bf92f3577b34da6-01"


@modes
def test_without_one_a_fresh_one_is_made_each_time(mode: str) -> None:
    first, second = (get("/shop/without-lock/", mode) for _ in range(2))
    assert first["Req-Id"] == first.json()["request_id"]
    assert first["Req-Id"] != second["Req-Id"]
    assert len(first["Req-Id"]) == 32


@modes
@pytest.mark.parametrize("given", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_id_is_ignored_and_a_fresh_one_made(mode: str, given: str) -> None:
    response = get("/shop/without-lock/", mode, headers={"Req-Id": given})
    assert response.status_code == 200
    assert response["Req-Id"] == response.json()["request_id"]
    assert len(response["Req-Id"]) == 32
    assert given not in ("", response["Req-Id"]) or given == ""
    assert "Set-Cookie" not in response


@modes
def test_another_header(mode: str, settings: Any) -> None:
    settings.DISTLOCK_REQUEST_ID_HEADER = "X-Request-ID"
    response = get("/shop/without-lock/", mode, headers={"X-Request-ID": "abc", "Req-Id": "not this"})
    assert response["X-Request-ID"] == "abc"
    assert "Req-Id" not in response


@modes
@pytest.mark.urls(__name__)
def test_an_id_that_the_project_answers_itself_is_kept(mode: str) -> None:
    assert get("/own/", mode, headers={"Req-Id": "the-clients"})["Req-Id"] == "its-own"


@modes
@pytest.mark.urls(__name__)
@pytest.mark.parametrize("kind", ["Own", "OwnAsync"])
def test_a_subclass_may_look_at_the_views_itself(mode: str, kind: str, settings: Any) -> None:
    settings.MIDDLEWARE = [f"{__name__}.{kind}"]
    if kind == "OwnAsync" and mode == "sync":
        settings.MIDDLEWARE = [f"{__name__}.Own"]
    assert get("/skipping/", mode).status_code == 418
    response = get("/skipping_async/", mode)
    assert (response.status_code, response.exc_info[0]) == (500, ConfigurationError)  # what ours says comes, too


class Own(RequestIDMiddleware):
    def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> Any:
        if view is skipping:
            return HttpResponse(status=418)
        return super().process_view(request, view, args, kwargs)


class OwnAsync(RequestIDMiddleware):
    async def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if view is skipping:
            return HttpResponse(status=418)
        return super().process_view(request, view, args, kwargs)


@pytest.mark.parametrize("view", ["without-lock", "failing"])
def test_the_context_is_cleared_after_the_request(view: str) -> None:
    Client(raise_request_exception=False).get(f"/shop/{view}/")
    assert request_id.current_origin() is None


def test_the_context_is_cleared_when_what_is_inside_raises() -> None:
    def inside(request: Any) -> HttpResponse:
        assert request_id.current_request_id() == request.request_id == "abc"
        raise ValueError("past Django's own handling")

    with pytest.raises(ValueError, match="past"):
        RequestIDMiddleware(inside)(RequestFactory().get("/", headers={"Req-Id": "abc"}))
    assert request_id.current_origin() is None


async def test_the_context_is_cleared_when_what_is_inside_raises_or_is_cancelled() -> None:
    for error in (ValueError("past Django's own handling"), asyncio.CancelledError()):

        async def inside(request: Any, error: BaseException = error) -> HttpResponse:
            assert request_id.current_request_id() == request.request_id == "abc"
            raise error

        with pytest.raises(type(error)):
            await RequestIDMiddleware(inside)(AsyncRequestFactory().get("/", headers={"Req-Id": "abc"}))
        assert request_id.current_origin() is None


async def test_an_async_request_never_leaves_its_thread(settings: Any) -> None:
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    threads: set[int] = set()
    answer = await AsyncClient().get("/shop/without-lock-async/")
    assert answer.json()["thread"] == threading.get_ident()

    # The view runs in this thread even if a hook before it went to another and came back: look at every hook.
    async def inside(request: Any) -> HttpResponse:
        threads.add(threading.get_ident())
        return HttpResponse()

    middleware = RequestIDMiddleware(inside)
    request = AsyncRequestFactory().get("/")
    assert inspect.iscoroutinefunction(middleware.process_view)
    await middleware.process_view(request, inside, (), {})
    await middleware(request)
    assert threads == {threading.get_ident()}


@modes
def test_the_holder_of_a_lock_says_which_request_it_is(mode: str, gate: Any, in_thread: Any) -> None:
    in_thread(get, "/shop/function/7/", mode, headers={"Req-Id": "abc"})
    assert gate.entered.wait(20)
    (row,) = list_all(registry()).rows
    assert (row.holder.request_id, row.holder.path) == ("abc", "GET /shop/function/<int:order_id>/")
    assert row.holder.function == "tests.support.django_project.views.function"


def test_every_log_record_has_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(RequestIDFilter())
    Client(raise_request_exception=False).get("/shop/failing/", headers={"Req-Id": "abc"})
    logging.getLogger("somebody.else").warning("outside of a request")
    ids = {record.name: record.request_id for record in caplog.records}  # type: ignore[attr-defined]
    assert ids == {"django.request": "abc", "somebody.else": "-"}


# What the client is told -------------------------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("view", ["function", "coroutine"])
@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "text/html; charset=utf-8"),
        ("*/*", "text/html; charset=utf-8"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"),
        ("application/json", "application/problem+json"),
        ("application/problem+json", "application/problem+json"),
        ("text/html;q=0.5,application/json", "application/problem+json"),
        ("image/png", "text/html; charset=utf-8"),
    ],
)
def test_a_busy_lock_is_a_409_in_the_clients_format(
    mode: str, view: str, accept: str | None, content_type: str, elsewhere: Any
) -> None:
    elsewhere("order:7", expire=8)
    headers = {"Req-Id": "abc", **({"Accept": accept} if accept else {})}
    response = get(f"/shop/{view}/7/", mode, headers=headers)
    assert response.status_code == 409
    assert response["Content-Type"] == content_type
    assert 1 <= int(response["Retry-After"]) <= 8
    assert response["Cache-Control"] == "no-store"
    assert response["Req-Id"] == "abc"
    assert "Accept" in response["Vary"]
    text = response.content.decode()
    assert "order:7" not in text  # a key may hold what is nobody's business
    assert "abc" in text
    if content_type == "application/problem+json":
        problem = json.loads(text)
        assert (problem["status"], problem["title"], problem["request_id"]) == (409, "Conflict", "abc")


@modes
@pytest.mark.parametrize("view", ["unavailable", "unavailable-async"])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_a_store_that_does_not_answer_is_a_503(
    mode: str, view: str, accept: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = get(f"/shop/{view}/", mode, headers={"Accept": accept})
    assert response.status_code == 503
    assert "Retry-After" not in response
    assert ("text/html" in response["Content-Type"]) == (accept == "text/html")
    assert "10.0.0.1" not in response.content.decode()
    assert "10.0.0.1" in caplog.text


@modes
def test_a_dead_redis_is_a_503(mode: str, settings: Any) -> None:
    settings.DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert get("/shop/function/7/", mode).status_code == 503


@modes
@pytest.mark.parametrize("view", ["failing", "failing-async"])
def test_any_other_exception_is_djangos_business(mode: str, view: str) -> None:
    response = get(f"/shop/{view}/", mode)
    assert response.status_code == 500
    kind, error, _ = response.exc_info
    assert kind is ValueError
    assert str(error) == "the view's own"


# on_busy="skip" ----------------------------------------------------------------------------------------------------


#: A type checker refuses it, too: such a view may return None.
skip: Any = distributed_lockable(key="skipping", on_busy="skip")


@skip
def skipping(request: Any) -> HttpResponse:
    return HttpResponse()


@skip
async def skipping_async(request: Any) -> HttpResponse:
    return HttpResponse()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("view", ["skipping", "skipping_async"])
@pytest.mark.urls(__name__)
def test_a_view_that_would_return_none_is_refused_with_the_remedy(mode: str, view: str) -> None:
    response = get(f"/{view}/", mode)
    assert response.status_code == 500
    kind, error, _ = response.exc_info
    assert kind is ConfigurationError
    assert 'on_busy="skip"' in str(error)
    assert "lambda error, request" in str(error)


@pytest.mark.urls(__name__)
def test_the_stores_setting_counts_as_well(settings: Any) -> None:
    assert get("/plain/", "sync").status_code == 200
    settings.DISTLOCK = {"default": {"BACKEND": "memory", "ON_BUSY": "skip"}}
    assert get("/plain/", "sync").exc_info[0] is ConfigurationError


@distributed_lockable(key="plain")
def plain(request: Any) -> HttpResponse:
    return HttpResponse()


def own(request: Any) -> HttpResponse:
    return HttpResponse(headers={"Req-Id": "its-own"})


urlpatterns = [
    path("skipping/", skipping),
    path("skipping_async/", skipping_async),
    path("plain/", plain),
    path("own/", own),
]


def route(request: HttpRequest, **values: str) -> HttpResponse:
    [held] = held_locks()
    return HttpResponse(held.holder.path)


async def aroute(request: HttpRequest, **values: str) -> HttpResponse:
    [held] = await aheld_locks()
    return HttpResponse(held.holder.path)


class TakesALock:
    """A middleware, before the request has been routed."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        with lock("early"):
            [held] = held_locks()
        response = self.get_response(request)
        response["Early"] = held.holder.path or "-"
        return response


urlpatterns += [
    path("reset/<uid>/<slug:token>/", distributed_lockable(key="reset")(route)),
    path("areset/<uid>/<slug:token>/", distributed_lockable(key="reset")(aroute)),
    path("api/", include([re_path(r"^invited/(?P<token>[^/.]+)/$", distributed_lockable(key="reset")(route))])),
]


@modes
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/reset/MQ/s3cret/", "GET /reset/<uid>/<slug:token>/"),
        ("/areset/MQ/s3cret/?x=s3cret", "GET /areset/<uid>/<slug:token>/"),
        ("/api/invited/s3cret/", "GET /api/invited/<token>/"),
    ],
)
def test_of_a_url_only_its_route_is_stored_and_shown(mode: str, address: str, shown: str, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [settings.MIDDLEWARE[0], f"{__name__}.TakesALock"]
    response = get(address, mode)
    assert (response.status_code, response.content.decode()) == (200, shown)
    assert response["Early"] == "-"
