"""REST framework's way to say it: its renderers, its bodies, its Retry-After."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import path
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.views import APIView

from distlock_web import Lease, distributed_lockable
from distlock_web.django import responses
from distlock_web.testing.fault_injector import FaultInjector

Elsewhere = Callable[..., Lease]


@api_view(["GET"])
@distributed_lockable(key="order")
def function(request: Any) -> Response:
    return Response("done")


class Class(APIView):
    @distributed_lockable(key="order")
    def get(self, request: Any) -> Response:
        return Response("done")


@api_view(["GET"])
@distributed_lockable(key="order", on_busy=responses.problem)
def own(request: Any) -> Response:
    return Response("done")


@api_view(["GET"])
@distributed_lockable(key="order")
def missing(request: Any) -> Response:
    raise NotFound


@api_view(["GET"])
def broken(request: Any) -> Response:
    raise ValueError("the view's own")


urlpatterns = [
    path("function/", function),
    path("class/", Class.as_view()),
    path("own/", own),
    path("missing/", missing),
    path("broken/", broken),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    settings.REST_FRAMEWORK = {
        "EXCEPTION_HANDLER": "distlock_web.django.rest.exception_handler",
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    }


@pytest.mark.parametrize("view", ["function", "class"])
def test_busy(injector: FaultInjector, elsewhere: Elsewhere, view: str) -> None:
    elsewhere("order", expire=10)
    answer = Client().get(f"/{view}/")
    assert answer.status_code == 409
    assert answer["Content-Type"] == "application/json"
    assert list(answer.json()) == ["detail"]
    assert answer.data["detail"].code == "lock_busy"  # type: ignore[attr-defined]
    assert 1 <= int(answer["Retry-After"]) <= 10
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize("view", ["function", "class"])
def test_unavailable(injector: FaultInjector, view: str, caplog: pytest.LogCaptureFixture) -> None:
    injector.cut()
    answer = Client().get(f"/{view}/")
    assert answer.status_code == 503
    assert answer.data["detail"].code == "lock_unavailable"  # type: ignore[attr-defined]
    assert "Retry-After" not in answer
    assert [record.levelname for record in caplog.records if record.name == "distlock_web"] == ["ERROR"]


def test_a_policy_of_the_view_comes_first(injector: FaultInjector, elsewhere: Elsewhere) -> None:
    elsewhere("order")
    assert Client().get("/own/")["Content-Type"] == "application/problem+json"


def test_everything_else_is_rest_frameworks_business(injector: FaultInjector) -> None:
    assert Client().get("/missing/").status_code == 404
    with pytest.raises(ValueError, match="the view's own"):
        Client().get("/broken/")
