"""REST framework's way to say it: its renderers, its bodies, its Retry-After."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from distlock_web import Lease, distributed_lockable
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
@distributed_lockable(key="order")
def missing(request: Any) -> Response:
    raise NotFound


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
    retry_after = int(answer["Retry-After"])
    assert answer.json() == {
        "detail": answer.json()["detail"],
        "code": "lock_busy",
        "retry_after": retry_after,
        "request_id": answer["Req-Id"],
    }
    assert answer.data["detail"].code == "lock_busy"  # type: ignore[attr-defined]
    assert 1 <= retry_after <= 10
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize("view", ["function", "class"])
def test_unavailable(injector: FaultInjector, view: str, caplog: pytest.LogCaptureFixture) -> None:
    injector.cut()
    answer = Client().get(f"/{view}/")
    assert answer.status_code == 503
    assert answer.data["detail"].code == "lock_unavailable"  # type: ignore[attr-defined]
    assert "Retry-After" not in answer
    assert [record.levelname for record in caplog.records if record.name == "distlock_web"] == ["ERROR"]


# Where the decorator stands --------------------------------------------------------------------------------------


@distributed_lockable(key="order")
@api_view(["GET"])
def above(request: Any) -> Response:
    return Response("done")


@method_decorator(distributed_lockable(key="order"), name="dispatch")
class Dispatched(APIView):
    def get(self, request: Any) -> Response:
        return Response("done")


class Orders(ViewSet):
    def list(self, request: Any) -> Response:
        return Response("free")

    @distributed_lockable(key="order")
    def create(self, request: Any) -> Response:
        return Response("done")

    @action(detail=True, methods=["POST"])
    @distributed_lockable(key="order:{pk}")
    def pay(self, request: Any, pk: str) -> Response:
        return Response("done")

    @action(detail=False)
    @distributed_lockable(key="cart:{request.user.pk}")
    def cart(self, request: Any) -> Response:
        return Response("done")

    @action(detail=False)
    @distributed_lockable(key="cart:{request.user.pk|request.GET[visitor]}")
    def visitor(self, request: Any) -> Response:
        return Response("done")


PLACES = {
    "/function/": "order",
    "/class/": "order",
    "/above/": "order",
    "/dispatched/": "order",
    "/orders/": "order",
    "/orders/7/pay/": "order:7",
}


def ask(address: str, **headers: str) -> Any:
    return Client(headers=headers).generic("POST" if address.startswith("/orders/") else "GET", address)


@pytest.mark.parametrize("ours", [True, False], ids=["our handler", "its own"])
@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/xml", ""])
@pytest.mark.parametrize("address", PLACES)
def test_wherever_the_decorator_stands_the_answer_is_json_and_never_a_page(
    injector: FaultInjector, elsewhere: Elsewhere, settings: Any, address: str, accept: str, ours: bool
) -> None:
    if not ours:
        del settings.REST_FRAMEWORK["EXCEPTION_HANDLER"]
        settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK}
    assert ask(address).json() == "done"
    elsewhere(PLACES[address])
    answer = ask(address, **({"accept": accept} if accept else {}))
    if address.startswith("/orders/"):
        assert Client().get("/orders/").json() == "free", "another action has nothing to do with it"
    before_it_is_asked = accept == "application/xml" and address not in ("/above/", "/dispatched/")
    assert answer["Content-Type"] in ("application/json", "application/problem+json")
    if before_it_is_asked:  # REST framework answers that itself
        assert answer.status_code == 406
        return
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("The same thing is being done")
    assert "Retry-After" in answer


def test_an_anonymous_visitor_is_a_400_or_has_a_second_choice(injector: FaultInjector) -> None:
    answer = Client().get("/orders/cart/")
    assert answer.status_code == 400
    assert answer.json()["detail"] == "The request lacks something that is needed for this."
    assert answer.json()["code"] == "lock_key_unavailable"
    assert answer.data["detail"].code == "lock_key_unavailable"  # type: ignore[attr-defined]
    assert Client().get("/orders/visitor/").status_code == 400
    assert Client().get("/orders/visitor/?visitor=7").json() == "done"


def test_everything_else_is_rest_frameworks_business(injector: FaultInjector) -> None:
    assert Client().get("/missing/").status_code == 404


router = SimpleRouter()
router.register("orders", Orders, basename="orders")
urlpatterns = [
    path("function/", function),
    path("class/", Class.as_view()),
    path("missing/", missing),
    path("above/", above),
    path("dispatched/", Dispatched.as_view()),
    path("", include(router.urls)),
]
