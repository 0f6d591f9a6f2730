"""Django Ninja's operations under ``ATOMIC_REQUESTS``, and what ``manage.py check`` says of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage, run_checks
from django.db import connections, transaction
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from ninja import NinjaAPI

from distlock_web import ConfigurationError, distributed_lockable, once

numbers = itertools.count()


def pay(request: HttpRequest, order_id: str) -> str:
    Group.objects.create(name=order_id)
    return order_id


def pay_by_number(request: HttpRequest, order_id: int) -> str:
    return pay(request, str(order_id))


def pay_anything(request: HttpRequest, order_id):  # type: ignore[no-untyped-def]
    return pay(request, order_id)


def said_of(settings: Any, operation: Callable[..., Any], *, taken_out_of: str | None = None) -> list[CheckMessage]:
    """What is said of a project with this operation. ``taken_out_of``: a database with ATOMIC_REQUESTS."""
    api = NinjaAPI(urls_namespace=f"commit {next(numbers)}", docs_url=None)
    api.get("/pay/{order_id}")(lambda request, order_id: "plain")
    api.post("/pay/{order_id}")(operation)
    routes, *names = api.urls
    for route in routes if taken_out_of else ():
        transaction.non_atomic_requests(using=taken_out_of)(cast(Any, route).callback)
    settings.ROOT_URLCONF = (path("api/", cast(Any, (routes, *names))),)
    return [each for each in run_checks() if str(each.id).startswith("distlock_web.")]


@pytest.fixture
def atomic(real_transactions: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)


LOCK = distributed_lockable(key="order")
to_login: Any = login_required
WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "skip": ("W011", distributed_lockable(key="order", on_busy="skip")(pay)),
    "store": ("E004", distributed_lockable(key="order", store="other")(pay)),
    "spelled": ("W007", distributed_lockable(key="order:{order_id}")(pay)),
    "spelled, not said": ("W007", distributed_lockable(key="order:{order_id}")(pay_anything)),
    "login": ("W009", LOCK(to_login(pay))),
    "login, below another": ("W009", distributed_lockable(key="till")(LOCK(to_login(pay)))),
}
RIGHT: dict[str, Callable[..., Any]] = {
    "number": distributed_lockable(key="order:{order_id}")(pay_by_number),
    "below login": to_login(LOCK(pay)),
    "plain": pay,
}


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", [*WRONG, *RIGHT])
def test_an_operation_is_looked_at_as_a_view_is(settings: Any, name: str) -> None:
    code, operation = WRONG[name] if name in WRONG else (None, RIGHT[name])
    said = said_of(settings, operation)
    assert {str(each.id).removeprefix("distlock_web.") for each in said} == ({code} if code else set())
    assert ("or annotate it: order_id: int." in str([each.hint for each in said])) is (code == "W007")


UNDER_ATOMIC_REQUESTS = {
    "lock": ("W004", LOCK),
    "commit": ("E005", distributed_lockable(key="order", until="commit")),
    "once": ("E005", once(key="pay:{order_id:str}", keep=60)),
    "once, commit": ("E005", once(key="pay:{order_id:str}", keep=60, until="commit")),
}


@pytest.mark.usefixtures("memory", "atomic")
@pytest.mark.parametrize("name", UNDER_ATOMIC_REQUESTS)
def test_under_atomic_requests_the_api_has_to_be_taken_out(settings: Any, name: str) -> None:
    """Django opens its transaction around Ninja's view, above all decorators of the operation."""
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    code, lock = UNDER_ATOMIC_REQUESTS[name]
    [said] = said_of(settings, lock(pay))
    assert said.id == f"distlock_web.{code}"
    assert f"The view {__name__}.pay at 'api/pay/<order_id>'" in said.msg, "and not the other operations of its path"
    assert "transaction.non_atomic_requests(route.callback)" in str(said.hint)
    if code == "E005":
        with pytest.raises(ConfigurationError):
            Client().post("/api/pay/7")
        assert not Group.objects.exists()

    assert said_of(settings, lock(pay), taken_out_of="default") == [], "what the hint says is the remedy"
    assert Client().post("/api/pay/7").json() == "7"
    assert Group.objects.count() == 1


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(request: HttpRequest, order_id: str) -> Any:
        return function(request, order_id)

    return inner


UNDER_ATOMIC_REQUESTS_OF_ANOTHER: dict[str, tuple[str, Callable[[], Callable[..., Any]]]] = {
    "lock": ("W004", lambda: LOCK(pay)),
    "commit": ("W004", lambda: distributed_lockable(key="order", until="commit")(pay)),
    "commit there": ("E005", lambda: distributed_lockable(key="order", until="commit", database="orders")(pay)),
    "once": ("E005", lambda: once(key="pay:{order_id:str}", keep=60)(pay)),
    "once, hidden": ("E005", lambda: hiding(once(key="pay:{order_id:str}", keep=60)(pay))),
}


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("name", UNDER_ATOMIC_REQUESTS_OF_ANOTHER)
def test_of_another_database_the_api_is_taken_out_by_its_name(
    settings: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without it the exemption is of "default" alone; and on an operation the decorator does nothing."""
    code, make = UNDER_ATOMIC_REQUESTS_OF_ANOTHER[name]
    orders = {**connections.settings["default"], "ATOMIC_REQUESTS": True}
    monkeypatch.setitem(connections.settings, "orders", orders)
    [said] = said_of(settings, operation := make())
    assert said.id == f"distlock_web.{code}"
    assert "transaction.non_atomic_requests(using='orders')(route.callback)" in str(said.hint)
    assert "@transaction" not in str(said.hint)
    assert said_of(settings, operation, taken_out_of="orders") == []


@pytest.mark.usefixtures("memory")
def test_a_skip_around_the_whole_view_of_ninja_is_no_answer_of_its_own(settings: Any) -> None:
    """Ninja makes an answer of an operation's None alone."""
    api = NinjaAPI(urls_namespace=f"commit {next(numbers)}", docs_url=None)
    api.post("/pay/{order_id}")(pay)
    [route] = [each for each in api.urls[0] if "pay" in str(each.pattern)][:1]
    skipping: Any = distributed_lockable(key="order", on_busy="skip")
    settings.ROOT_URLCONF = (path("pay/<order_id>", skipping(cast(Any, route).callback)),)
    said = [str(each.id) for each in run_checks() if each.id in ("distlock_web.E003", "distlock_web.W011")]
    assert said == ["distlock_web.E003"]
