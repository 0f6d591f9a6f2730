"""``until="commit"`` where it cannot be right: refused in words; at import, by a system check, or at the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.checks import CheckMessage
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.views import View
from flask import Flask
from rest_framework.decorators import api_view
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from distlock_web import ConfigurationError, distributed_lockable, once
from distlock_web.core.registry import registry
from distlock_web.flask import DistLock
from distlock_web.ops.held_locks import list_all

Get = Callable[..., HttpResponse]
REMEDY = "Put the decorator outermost: above @api_view, on a class-based view's dispatch"

pytestmark = pytest.mark.usefixtures("memory", "real_transactions")


@pytest.fixture
def atomic(real_transactions: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


# At import -----------------------------------------------------------------------------------------------------------


def test_a_coroutine() -> None:
    with pytest.raises(ConfigurationError, match="belongs to one thread, and this is a coroutine"):

        @distributed_lockable(until="commit")
        async def view() -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until": "commit", "database": "otehr"}, "'otehr' is not in DATABASES, which has 'default'"),
        ({"until": "commit", "database": 7}, "needs to know the transaction"),
        ({"until": "commit", "database": ["default"]}, "needs to know the transaction"),
        ({"until": "comit"}, "until is 'comit'"),
        ({"database": "default"}, 'names the transaction of until="commit"'),
    ],
)
def test_options_that_cannot_be_right(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        distributed_lockable(**options)(test_a_coroutine)


# In a transaction of somebody else's ---------------------------------------------------------------------------------


@distributed_lockable(key="order", until="commit")
def task() -> None:
    Group.objects.create(name="written")


def test_an_open_transaction() -> None:
    with transaction.atomic(), pytest.raises(ConfigurationError, match="one is open already on 'default'"):
        task()
    with transaction.atomic(), pytest.raises(ConfigurationError, match="outside of atomic"):
        task()
    assert not Group.objects.exists()
    assert not list_all(registry()).rows


def test_autocommit_that_is_off() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ConfigurationError, match="needs autocommit on 'default'"):
            task()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_one_inside_another_is_refused_for_its_lock_would_end_first() -> None:
    @distributed_lockable(key="cart", until="commit")
    def outer() -> None:
        task()

    with pytest.raises(ConfigurationError, match="task: until"):
        outer()


@pytest.mark.usefixtures("atomic")
def test_the_method_of_a_class(get: Get, checked: Callable[..., list[CheckMessage]]) -> None:
    class Pay(View):
        @distributed_lockable(key="order", until="commit")
        def get(self, request: HttpRequest) -> HttpResponse:
            raise AssertionError

    with pytest.raises(ConfigurationError, match=REMEDY):
        get(Pay.as_view())
    assert [each.id for each in checked(Pay.as_view())] == ["distlock_web.E005"]


# A stream, which is sent after the commit -----------------------------------------------------------------------------


def of_django(body: Iterator[str]) -> Callable[[], object]:
    view = distributed_lockable(key="order", until="commit")(lambda request: StreamingHttpResponse(body))
    return lambda: view(RequestFactory().get("/"))


def of_flask(body: Iterator[str]) -> Callable[[], object]:
    app = Flask("shop")
    DistLock(app)
    session = scoped_session(sessionmaker(create_engine("sqlite://")))
    view = distributed_lockable(key="order", until="commit", database=session)(lambda: body)
    app.add_url_rule("/", "view", view)
    return lambda: app.test_client().get("/").text


@pytest.mark.parametrize("site", [of_django, of_flask])
def test_a_stream_is_warned_of_once(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The lock is released before the first byte of the body, without a word."""
    ask = site(iter("xy"))
    for _ in range(2):
        ask()
    [said] = [each.message for each in caplog.records if "stream" in each.message]
    assert 'until="commit" releases its lock before the body' in said


# REST framework ------------------------------------------------------------------------------------------------------


BELOW = "Put @transaction.non_atomic_requests above @api_view, and leave once below it."


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize(
    ("decorator", "hint"),
    [
        (distributed_lockable(key="order", until="commit"), "Put distributed_lockable above @api_view."),
        (once(key="order", until="commit", keep=60), BELOW),
    ],
)
def test_under_api_view(get: Get, checked: Callable[..., list[CheckMessage]], decorator: Any, hint: str) -> None:
    @decorator
    def view(request: object) -> Response:
        return Response("done")

    api = api_view(["GET"])(view)
    with pytest.raises(ConfigurationError, match=REMEDY):
        get(api)
    [found] = checked(api)
    assert (found.id, found.hint) == ("distlock_web.E005", hint)
    api = transaction.non_atomic_requests(api)  # what the hint for once says
    assert checked(api) == []
    assert get(api).status_code == 200


def make_view(fail: bool) -> Callable[..., Any]:
    @distributed_lockable(key="order", until="commit")
    @api_view(["GET"])
    def view(request: object) -> Response:
        Group.objects.create(name="written")
        if fail:
            raise ValidationError("no")
        return Response("done", status=400)

    return view


def test_above_api_view(atomic_requests: bool, get: Get, checked: Callable[..., list[CheckMessage]]) -> None:
    """An exception that REST framework answers rolls back; an answer of the view's own does not."""
    assert get(make_view(fail=True)).status_code == 400
    assert not Group.objects.exists()
    assert get(make_view(fail=False)).status_code == 400
    assert Group.objects.exists()
    assert checked(make_view(fail=False)) == []


# The view's own opt-outs ---------------------------------------------------------------------------------------------


def test_the_views_own_opt_outs_are_kept(
    other: str, get: Get, monkeypatch: pytest.MonkeyPatch, checked: Callable[..., list[CheckMessage]]
) -> None:
    for alias in ("default", "other"):
        monkeypatch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
    seen: list[tuple[bool, bool]] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append((connections["default"].in_atomic_block, connections["other"].in_atomic_block))
        return HttpResponse()

    whole = distributed_lockable(key="order", until="commit")
    get(whole(transaction.non_atomic_requests(using="other")(view)))
    get(transaction.non_atomic_requests(using="other")(whole(view)))
    assert seen == [(True, False), (True, False)]
    assert checked(whole(transaction.non_atomic_requests(using="other")(view))) == []
    # Another function's opt-out is not the decorator's to make:
    assert view._non_atomic_requests == {"other"}  # type: ignore[attr-defined]


# What is not refused, but told of ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("until", [None, "return"])
def test_a_plain_lock_under_atomic_requests(until: Any, checked: Callable[..., list[CheckMessage]]) -> None:
    @distributed_lockable(key="order", until=until)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    [found] = checked(view)
    assert found.id == "distlock_web.W004"
    assert "'default' after the lock is released" in found.msg
    assert "until=\"commit\" and database='default'" in str(found.hint)
    assert checked(transaction.non_atomic_requests(view)) == []
