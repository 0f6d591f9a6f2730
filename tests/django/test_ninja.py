"""Django Ninja, which answers exceptions of its operations itself: with DEBUG=True all of them, with a traceback."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from ninja import NinjaAPI, Router, Schema

from distlock_web import LockBusy, distributed_lockable, lock
from distlock_web.django import ninja_errors
from distlock_web.testing.plugin import hold_lock

api, own, catching = (NinjaAPI(urls_namespace=name) for name in ("shop", "own", "catching"))
router = Router()


@api.post("/pay/{order_id}")
@distributed_lockable(key="order:{order_id}")
def pay(request: HttpRequest, order_id: int) -> dict[str, int]:
    return {"paid": order_id}


class Payment(Schema):
    amount: int


@api.post("/charge")
@distributed_lockable(key="order:{payment.amount}")
def charge(request: HttpRequest, payment: Payment) -> dict[str, int]:
    return {"paid": payment.amount}


@router.post("/ship/{order_id}")
@distributed_lockable(key="order:{order_id}")
async def ship(request: HttpRequest, order_id: int) -> dict[str, int]:
    return {"shipped": order_id}


@router.post("/block/{order_id}")
def block(request: HttpRequest, order_id: int) -> dict[str, int]:
    with lock(f"order:{order_id}"):
        return {"blocked": order_id}


@api.post("/visit")
@distributed_lockable(key="visitor:{request.GET[visitor]}")
def visit(request: HttpRequest) -> dict[str, int]:
    return {}


@api.post("/broken")
def broken(request: HttpRequest) -> None:
    raise LookupError("the operation's own")


@own.post("/pay/{order_id}")
@catching.post("/pay/{order_id}")
@distributed_lockable(key="order:{order_id}")
def pay_elsewhere(request: HttpRequest, order_id: int) -> dict[str, int]:
    return {"paid": order_id}


@own.exception_handler(LockBusy)
def busy(request: HttpRequest, error: LockBusy) -> HttpResponse:
    return own.create_response(request, {"wait": error.retry_after}, status=423)


@catching.exception_handler(Exception)
def anything(request: HttpRequest, error: Exception) -> HttpResponse:
    return catching.create_response(request, {}, status=500)


api.add_router("/orders", router)
urlpatterns = [path("api/", api.urls), path("own/", own.urls), path("catching/", catching.urls)]


@pytest.fixture(params=[True, False], ids=["DEBUG", ""])
def client(memory: None, settings: Any, request: pytest.FixtureRequest) -> Client:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    settings.DEBUG = request.param
    return Client(raise_request_exception=False, headers={"accept": "application/json"})


@pytest.mark.parametrize("address", ["/api/pay/7", "/api/orders/ship/7", "/api/orders/block/7", "/catching/pay/7"])
def test_a_busy_lock_is_a_409(client: Client, address: str) -> None:
    with hold_lock("order:7"):
        answer = client.post(address)
        assert client.post(address.replace("7", "8")).status_code == 200
    assert (answer.status_code, answer["Content-Type"]) == (409, "application/problem+json")
    assert answer.json()["retry_after"] == int(answer["Retry-After"])


def test_an_operation_whose_annotations_are_texts(client: Client) -> None:
    """Ninja looked their names up in our module: each call was a 500."""
    answer = client.post("/api/charge", {"amount": 7}, content_type="application/json")
    assert (answer.status_code, answer.json()) == (200, {"paid": 7})


def test_a_value_that_is_missing_is_a_400(client: Client) -> None:
    assert client.post("/api/visit").json()["code"] == "lock_key_unavailable"


def test_a_store_that_does_not_answer_is_a_503(client: Client, settings: Any) -> None:
    settings.DISTLOCK = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert client.post("/api/pay/7").status_code == 503


def test_a_handler_of_the_apis_own_comes_first(client: Client) -> None:
    with hold_lock("order:7"):
        assert client.post("/own/pay/7").status_code == 423


def test_everything_else_is_the_apis_business(client: Client, settings: Any) -> None:
    answer = client.post("/api/broken")
    assert answer.status_code == 500
    assert answer["Content-Type"].startswith("text/plain") is settings.DEBUG
    assert client.post("/api/pay/seven").status_code == 422


async def test_under_asgi(client: Client, settings: Any, async_client: Any) -> None:
    with hold_lock("order:7"):
        answer = await async_client.post("/api/orders/ship/7", headers={"accept": "application/json"})
    assert answer.status_code == 409


@pytest.mark.parametrize("gone", ["_lookup_exception_handler", "add_exception_handler"])
def test_a_ninja_without_what_we_use_of_it(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    """Busy locks are answered by Ninja then; free ones work, and the log has one line."""
    monkeypatch.setattr(ninja_errors, "_taught", WeakSet())
    monkeypatch.setattr(ninja_errors, "_given_up", False)
    with monkeypatch.context() as other:
        other.delattr(NinjaAPI, gone)
        monkeypatch.setattr(api, "_exception_handlers", {Exception: anything})
        assert [client.post("/api/pay/7").status_code for _ in range(2)] == [200, 200]
    assert caplog.text.count("Django Ninja") == 1
    assert not ninja_errors._taught
    with hold_lock("order:7"):
        assert client.post("/api/pay/7").status_code == 409
