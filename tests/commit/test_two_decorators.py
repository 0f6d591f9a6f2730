"""What ``manage.py check``, or the import, says of until="commit" below other decorators, and what a call does then.

Each shape that is refused at its calls is found before, and what is advised there ends it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import action
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from distlock_web import ConfigurationError, distributed_lockable, lock, once
from distlock_web.core.errors import OpenTransactionWarning
from distlock_web.django.views import UntilCommitMixin

Get = Callable[..., Any]
Checked = Callable[..., list[CheckMessage]]
Decorate = Callable[[Any], Any]

pytestmark = pytest.mark.usefixtures("memory", "real_transactions")


@pytest.fixture
def atomic(real_transactions: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


def a_lock(until: Any = None, key: str = "stock") -> Decorate:
    return distributed_lockable(key=key, until=until)


def a_once(until: Any = None) -> Decorate:
    return once(key="order", keep=60, until=until)


# One above the other, on one function ---------------------------------------------------------------------------------

#: The upper one, the lower one; what is found; whether the stock is locked when the commit is done, None: refused.
ORDERS = [
    (a_lock(), a_once("commit"), [], True),
    (a_lock(), a_lock("commit", "cart"), [], True),
    (a_lock("commit"), a_lock(), [], True),  # it enters the same lock again
    (a_once("commit"), a_lock(), ["distlock_web.W004"], False),
    (a_lock("commit", "cart"), a_lock(), ["distlock_web.W004"], False),
    (a_lock("commit"), a_once(), ["distlock_web.E005"], None),
    (a_once(), a_lock("commit"), [], True),
]


@pytest.mark.parametrize("requests", ["atomic", "not atomic"])
@pytest.mark.parametrize(("upper", "lower", "ids", "locked"), ORDERS)
@pytest.mark.filterwarnings("ignore::distlock_web.core.errors.OpenTransactionWarning")
def test_which_stands_above_which(
    get: Get,
    checked: Checked,
    monkeypatch: pytest.MonkeyPatch,
    requests: str,
    upper: Decorate,
    lower: Decorate,
    ids: list[str],
    locked: bool | None,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", requests == "atomic")
    seen: list[bool] = []

    def view(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(lambda: seen.append(lock("stock").locked()))
        return HttpResponse("sold")

    decorated = upper(lower(view))
    assert [found.id for found in checked(decorated)] == ids
    if locked is None:
        with pytest.raises(ConfigurationError):
            get(decorated)
        return
    assert get(decorated).status_code == 200
    assert seen == [locked]


@pytest.mark.parametrize("lower", [a_lock("commit", "cart"), a_once("commit")])
@pytest.mark.parametrize("upper", [a_lock("commit"), a_once("commit")])
def test_two_that_own_the_transaction_are_refused_at_import(upper: Decorate, lower: Decorate) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(ConfigurationError, match="Leave until= out of the upper one"):
        upper(lower(view))


def test_two_databases_may_have_one_each(other: str) -> None:
    @a_lock("commit")
    @distributed_lockable(key="cart", until="commit", database=other)
    def run() -> str:
        return "done"

    with pytest.warns(OpenTransactionWarning):  # the inner lock ends before the outer commit
        assert run() == "done"


def test_one_on_dispatch_and_one_on_its_handler(get: Get, checked: Checked, atomic: None) -> None:
    @method_decorator(a_lock("commit"), name="dispatch")
    class Pay(View):
        @method_decorator(a_once("commit"))
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    [found] = checked(Pay.as_view())
    assert found.id == "distlock_web.E005"
    assert "two decorators" in found.msg
    with pytest.raises(ConfigurationError, match=r'has until="commit", too: say it in one of the two alone'):
        get(Pay.as_view())


# What Django does not see ---------------------------------------------------------------------------------------------


def without_wraps(view: Any) -> Any:
    """As wagtail's ``require_admin_access``."""

    def decorated(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return decorated


def with_wraps(view: Any) -> Any:
    return functools.wraps(view)(without_wraps(view))


def function(above: Decorate, decorator: Decorate) -> Any:
    @above
    @decorator
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    return view


def handler(above: Decorate, decorator: Decorate) -> Any:
    class Pay(UntilCommitMixin, View):
        @above
        @decorator
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("done")

    return Pay.as_view()


def helper(above: Decorate, decorator: Decorate) -> Any:
    """As django-oscar's hooks."""

    class Pay(UntilCommitMixin, View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return self.place_order(request)

        @above
        @decorator
        def place_order(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("done")

    return Pay.as_view()


def helper_without_the_mixin(above: Decorate, decorator: Decorate) -> Any:
    class Pay(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return self.place_order(request)

        @above
        @decorator
        def place_order(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("done")

    return Pay.as_view()


def helper_of_an_action(above: Decorate, decorator: Decorate) -> Any:
    class Orders(UntilCommitMixin, ViewSet):
        def list(self, request: Any) -> Response:
            self.perform_create(request)
            return Response("done")

        @above
        @decorator
        def perform_create(self, request: Any) -> None:
            pass

    return Orders.as_view({"get": "list"})


def as_it_is(view: Any) -> Any:
    return view


#: A handler, or what somebody may call elsewhere.
HIDDEN = [
    (function, without_wraps, "E005"),
    (function, lambda view: with_wraps(without_wraps(view)), "E005"),
    (handler, without_wraps, "E005"),
    (helper, as_it_is, "W010"),
    (helper_without_the_mixin, as_it_is, "W010"),
    (helper_of_an_action, as_it_is, "W010"),
]


@pytest.mark.parametrize("decorator", [a_lock("commit"), a_once("commit"), a_once()])
@pytest.mark.parametrize(("shape", "above", "id_"), HIDDEN)
def test_what_is_refused_at_its_calls_is_found(
    get: Get, checked: Checked, atomic: None, shape: Any, above: Decorate, id_: str, decorator: Decorate
) -> None:
    """Each call was a 500 that named a cure which was there already, and ``check`` said nothing."""
    view = shape(above, decorator)
    [found] = checked(view)
    assert found.id == f"distlock_web.{id_}"
    with pytest.raises(ConfigurationError):
        get(view)
    exempt = transaction.non_atomic_requests(view)  # as both hints say
    assert checked(exempt) == []
    assert get(exempt).status_code == 200


@pytest.mark.parametrize("decorator", [a_lock("commit"), a_once("commit")])
@pytest.mark.parametrize("shape", [function, handler])
def test_with_wraps_nothing_is_hidden(
    get: Get, checked: Checked, atomic: None, shape: Any, decorator: Decorate
) -> None:
    view = shape(with_wraps, decorator)
    assert checked(view) == []
    assert get(view).status_code == 200


class Orders(UntilCommitMixin, ViewSet):
    def list(self, request: Any) -> Response:
        return Response("done")

    @a_lock("commit")
    def create(self, request: Any) -> Response:
        return Response("done")

    @action(detail=True, methods=["POST"])
    @a_lock("commit")
    def pay(self, request: Any) -> Response:
        return Response("done")


class OrdersToRead(Orders):
    """Of which no route leads to ``create``."""


@pytest.mark.parametrize("orders", [Orders, OrdersToRead])
def test_a_handler_of_another_route_is_no_helper(checked: Checked, atomic: None, orders: Any) -> None:
    """An error ends ``runserver`` and ``migrate``, for an action that no request reaches."""
    assert checked(orders.as_view({"get": "list"})) == []


def test_a_class_that_cannot_be_looked_at_is_left_alone(checked: Checked, atomic: None) -> None:
    class Computed:
        def __get__(self, instance: object, owner: object) -> None:
            raise LookupError

    class Pay(View):
        later = Computed()

    assert checked(Pay.as_view()) == []
