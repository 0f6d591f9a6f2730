"""The request id on log records, also on those that a framework writes when the request is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.http import Http404, HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from flask import Flask

from distlock_web import Lease, RequestIDFilter, distributed_lockable
from distlock_web.flask import DistLock

Elsewhere = Callable[..., Lease]


@distributed_lockable(key="order")
def pay(request: HttpRequest) -> HttpResponse:
    return HttpResponse("paid")


def missing(request: HttpRequest) -> HttpResponse:
    raise Http404


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError("a bug")


urlpatterns = [path("pay/", pay), path("missing/", missing), path("broken/", broken)]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], set[tuple[str, str]]]:
    """The loggers that have written, each with the request id of its line."""
    caplog.handler.addFilter(RequestIDFilter())
    caplog.set_level("INFO", "distlock_web")
    return lambda: {(record.name, vars(record)["request_id"]) for record in caplog.records if record.name != "asyncio"}


def get(mode: str, url: str) -> Any:
    headers = {"Req-Id": "seven"}
    if mode == "sync":
        return Client(raise_request_exception=False).get(url, headers=headers)

    async def aget() -> Any:
        return await AsyncClient(raise_request_exception=False).get(url, headers=headers)

    return asyncio.run(aget())


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("url", "status", "loggers"),
    [
        ("/nowhere/", 404, {"django.request"}),
        ("/missing/", 404, {"django.request"}),
        ("/broken/", 500, {"django.request"}),
        ("/pay/", 409, {"django.request", "distlock_web"}),
    ],
)
def test_django(
    settings: Any,
    memory: None,
    elsewhere: Elsewhere,
    logged: Callable[[], set[tuple[str, str]]],
    mode: str,
    url: str,
    status: int,
    loggers: set[str],
) -> None:
    """Django's own lines on a 404 and a 409 had no id: the middleware has ended by then."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    elsewhere("order")
    assert get(mode, url).status_code == status
    assert logged() == {(name, "seven") for name in loggers}


@pytest.mark.parametrize(
    ("url", "status", "loggers"),
    [("/nowhere", 404, set()), ("/broken", 500, {"shop"}), ("/pay", 409, {"distlock_web"})],
)
def test_flask(
    memory: None,
    elsewhere: Elsewhere,
    logged: Callable[[], set[tuple[str, str]]],
    url: str,
    status: int,
    loggers: set[str],
) -> None:
    app = Flask("shop")
    DistLock(app)
    app.add_url_rule("/pay", view_func=distributed_lockable(key="order")(lambda: "paid"), endpoint="pay")
    app.add_url_rule("/broken", view_func=lambda: str(1 / 0), endpoint="broken")
    elsewhere("order")
    assert app.test_client().get(url, headers={"Req-Id": "seven"}).status_code == status
    assert logged() == {(name, "seven") for name in loggers}
