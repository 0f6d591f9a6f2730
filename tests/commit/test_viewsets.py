"""``until="commit"`` for one action of a ViewSet, or one method of a class, also under ``ATOMIC_REQUESTS``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.views import View
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from distlock_web import distributed_lockable, once
from distlock_web.django.views import UntilCommitMixin

Get = Callable[..., Any]
Checked = Callable[..., list[CheckMessage]]


class Orders(UntilCommitMixin, ViewSet):
    @distributed_lockable(key="order", until="commit")
    def list(self, request: Any) -> Response:
        return write(request)

    def retrieve(self, request: Any) -> Response:
        return write(request)

    @distributed_lockable(key="order")
    def locked(self, request: Any) -> Response:
        return write(request)


def write(request: Any) -> Response:
    Group.objects.create(name=f"written {Group.objects.count()}")
    if "fail" in request.GET:
        raise ValidationError("no")
    return Response(connection.in_atomic_block)


both = {"get": "list", "post": "retrieve"}
other_way = {"get": "retrieve", "post": "list"}


class Single(UntilCommitMixin, APIView):
    @distributed_lockable(key="order", until="commit")
    def get(self, request: Any) -> Response:
        return write(request)


class Plain(UntilCommitMixin, View):
    @distributed_lockable(key="order", until="commit")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(write(request).data)


@pytest.mark.parametrize("view", [Orders.as_view(both), Single.as_view(), Plain.as_view()], ids=["set", "api", "view"])
def test_the_lock_outlives_the_commit(
    view: Any, history: list[str], atomic_requests: bool, get: Get, checked: Checked
) -> None:
    assert get(view).status_code == 200
    assert history == ["acquire", "BEGIN", "extend", "COMMIT", "release"]
    assert Group.objects.exists()
    assert checked(view) == []


LOCK = distributed_lockable(key="stock")
#: What has ``until="commit"`` and stands below a lock, as a lock and ``once`` on one view do.
INNER = {
    "lock": distributed_lockable(key="order", until="commit"),
    "once": once(key="order", keep=60, until="commit"),
}


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("base", [ViewSet, APIView, View])
def test_below_another_lock_the_handler_owns_its_transaction_all_the_same(
    history: list[str], atomic_requests: bool, get: Get, checked: Checked, base: Any, inner: str
) -> None:
    """The mixin looked at the outermost decorator alone: the inner one was refused at each call."""

    def handle(self: object, request: Any) -> Any:
        made = write(request)
        return HttpResponse(made.data) if base is View else made

    handlers = {"list" if base is ViewSet else "get": LOCK(INNER[inner](handle))}
    made: Any = type("Stacked", (UntilCommitMixin, base), handlers)
    view = made.as_view({"get": "list"}) if base is ViewSet else made.as_view()
    assert checked(view) == []
    assert get(view).status_code == 200
    assert history == ["acquire", "acquire", "BEGIN", "extend", "COMMIT", "release", "release"]


@pytest.mark.usefixtures("memory")
def test_an_exception_that_is_answered_rolls_back(atomic_requests: bool, get: Get) -> None:
    assert get(Orders.as_view(both), query="?fail").status_code == 400
    assert not Group.objects.exists()


@pytest.mark.usefixtures("memory")
def test_another_action_has_the_transaction_that_it_always_had(atomic_requests: bool, get: Get) -> None:
    assert get(Orders.as_view(other_way)).data is atomic_requests
    before = Group.objects.count()
    assert get(Orders.as_view(other_way), query="?fail").status_code == 400
    assert Group.objects.count() - before == (0 if atomic_requests else 1), "rolled back, under ATOMIC_REQUESTS"


@pytest.fixture
def atomic(real_transactions: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)


@pytest.mark.usefixtures("memory", "atomic")
def test_a_plain_lock_beside_it_is_told_of(checked: Checked) -> None:
    view = Orders.as_view({"get": "locked", "post": "list"})
    [found] = checked(view)
    assert found.id == "distlock_web.W004"
    assert str(found.hint).startswith('Say until="commit"'), "nothing stands in its way here"


class Without(View):
    @distributed_lockable(key="order")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@pytest.mark.usefixtures("memory", "atomic")
def test_what_the_warning_advises_is_not_an_error_afterwards(checked: Checked) -> None:
    """W004 said `until="commit"` of a method of a class, which is E005."""
    [found] = checked(Without.as_view())
    assert found.id == "distlock_web.W004"
    assert "UntilCommitMixin in front of the base classes" in str(found.hint)

    class With(UntilCommitMixin, View):
        @distributed_lockable(key="order", until="commit", database="default")
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    assert checked(With.as_view()) == []
