"""Django's middleware, beside what tests/web/test_request_ids.py and test_responses.py say of both frameworks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import include, path, re_path

from distlock_web import distributed_lockable, held_locks, lock
from distlock_web.core import request_id
from distlock_web.django.middleware import RequestIDMiddleware


def get(path: str, mode: str, **options: Any) -> Any:
    if mode == "sync":
        return Client(raise_request_exception=False).get(path, **options)
    return asyncio.run(AsyncClient(raise_request_exception=False).get(path, **options))


modes = pytest.mark.parametrize("mode", ["sync", "async"])
pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.urls(__name__)]


class Own(RequestIDMiddleware):
    def process_view(self, request: Any, view: Any, args: Any, kwargs: Any) -> Any:
        return HttpResponse(status=418)


@modes
def test_a_subclass_may_look_at_the_views_itself(mode: str, settings: Any) -> None:
    settings.MIDDLEWARE = [f"{__name__}.Own"]
    assert get("/thread/", mode).status_code == 418


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
    answer = await AsyncClient().get("/thread/")
    assert answer.content.decode() == str(threading.get_ident())

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


async def thread(request: Any) -> HttpResponse:
    return HttpResponse(str(threading.get_ident()))


@distributed_lockable(key="reset")
def route(request: HttpRequest, **values: str) -> HttpResponse:
    [held] = held_locks()
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


urlpatterns = [
    path("thread/", thread),
    path("reset/<uid>/<slug:token>/", route),
    path("api/", include([re_path(r"^invited/(?P<token>[^/.]+)/$", route)])),
]


@modes
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/reset/MQ/s3cret/", "GET /reset/<uid>/<slug:token>/"),
        ("/api/invited/s3cret/", "GET /api/invited/<token>/"),
    ],
)
def test_of_a_url_only_its_route_is_stored_and_shown(mode: str, address: str, shown: str, settings: Any) -> None:
    settings.MIDDLEWARE = [settings.MIDDLEWARE[0], f"{__name__}.TakesALock"]
    response = get(address, mode)
    assert (response.status_code, response.content.decode()) == (200, shown)
    assert response["Early"] == "-"
