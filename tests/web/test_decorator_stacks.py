"""Every order of decorators: the body runs under the lock to its end, or the order is refused in words that help.

One row for each decorator and place, one column for each of ours. What a row says is what was seen, and nothing else is
allowed: a body that ran without its lock fails the test in any row. ``when decorated`` is refused at import, ``at
check`` by ``manage.py check``, ``at the call`` by the first call, each with words that name a cure.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, TypeAlias

import flask_login
import pytest
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.models import Group, User
from django.core.checks import run_checks
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_page
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from flask import Flask
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from distlock_web import ConfigurationError, OpenTransactionWarning, current_lease, distributed_lockable, once
from distlock_web.flask import DistLock
from tests.support.databases import Database, django_alias

#: What a stack comes to. ``warned``: under the lock, which is released before the transaction around it commits.
Outcome: TypeAlias = Literal["locked", "warned", "when decorated", "at check", "at the call"]
#: By ours, in the order of OURS.
Row: TypeAlias = tuple[Outcome, Outcome, Outcome, Outcome]
Decorator: TypeAlias = Callable[[Any], Any]

OURS: dict[str, Callable[[], Decorator]] = {
    "lock": lambda: distributed_lockable(key="order", expire=30),
    "commit": lambda: distributed_lockable(key="order", expire=30, until="commit"),
    "once": lambda: once(key="order", keep=60),
    "once, commit": lambda: once(key="order", keep=60, until="commit"),
}
COLUMNS = list(OURS)


def without_wraps(function: Any) -> Any:
    """A decorator of somebody who has never heard of ``functools.wraps``."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def with_wraps(function: Any) -> Any:
    return functools.wraps(function)(without_wraps(function))


def generating(function: Any) -> Any:
    def steps(*args: Any) -> Iterator[Any]:
        yield function(*args)

    return steps


class CalledAsGenerator:
    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Iterator[Any]:
        yield self._function(*args)


def as_generator(function: Any) -> Any:
    return contextmanager(generating(function))


class Complaint(str):
    """What ``manage.py check`` says of a view that it refuses."""


class Seen:
    """What the bodies saw."""

    def __init__(self) -> None:
        self.leases: list[bool] = []

    def body(self) -> None:
        lease = current_lease()
        self.leases.append(lease is not None and not lease.lost)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(autouse=True)
def project(
    settings: Any, memory_store: None, make_database: Callable[..., Database], django_db_blocker: Any
) -> Iterator[None]:
    """A project with a database in a file, and nobody's transaction around its views."""
    settings.MIDDLEWARE = [
        "distlock_web.django.middleware.RequestIDMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ]
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    with django_db_blocker.unblock(), django_alias("default", make_database("sqlite"), Group, User):
        yield


def outcome(make: Callable[[], Any], serve: Callable[[Any], Any], seen: Seen) -> Outcome:
    """Make the stack, check it, call it: where it was refused, or how its body ran."""
    try:
        view = make()
    except ConfigurationError as error:
        return refused("when decorated", str(error), seen)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = serve(view)
        except ConfigurationError as error:
            return refused("at the call", str(error), seen)
    if isinstance(found, Complaint):
        return refused("at check", str(found), seen)
    assert seen.leases, f"the body has not run: {found}"
    assert all(seen.leases), "the body ran without its lock"
    return "warned" if any(issubclass(each.category, OpenTransactionWarning) for each in told) else "locked"


def refused(where: Outcome, text: str, seen: Seen) -> Outcome:
    assert seen.leases == [], f"refused after the work: {text}"
    cures = (
        "Put",
        "put",
        "goes below",
        "goes above",
        "Write",
        "outermost",
        "decorate",
        "Say",
        "say",
        "Let",
        "Call it outside",
    )
    assert any(cure in text for cure in cures), f"no cure: {text}"
    return where


# Django --------------------------------------------------------------------------------------------------------------

ALL_LOCKED: Row = ("locked", "locked", "locked", "locked")
#: Under ``ATOMIC_REQUESTS``: who does not own that transaction is warned, or refused.
IN_A_TRANSACTION: Row = ("warned", "locked", "at check", "locked")
AT_IMPORT: Row = ("when decorated", "when decorated", "when decorated", "when decorated")

DECORATORS: dict[str, Decorator] = {
    "login_required": login_required,
    "permission_required": permission_required("auth.add_group", raise_exception=True),
    "require_POST": require_POST,
    "csrf_exempt": csrf_exempt,
    "cache_page": cache_page(60),
    "atomic": transaction.atomic,
    "non_atomic_requests": transaction.non_atomic_requests,
    "api_view": api_view(["POST"]),
    "lru_cache": functools.lru_cache,
    "with wraps": with_wraps,
    "without wraps": without_wraps,
}
#: By decorator, whether ours stands above or below it, and ATOMIC_REQUESTS; else ALL_LOCKED and IN_A_TRANSACTION.
OTHERWISE: dict[tuple[str, str, bool], Row] = {
    ("atomic", "below", False): ("warned", "at the call", "at the call", "at the call"),
    ("atomic", "below", True): ("warned", "at the call", "at check", "at the call"),
    ("non_atomic_requests", "above", True): ALL_LOCKED,
    ("non_atomic_requests", "below", True): ALL_LOCKED,
    ("api_view", "below", True): ("warned", "at check", "at check", "at check"),
    ("without wraps", "below", True): ("warned", "at check", "at check", "at check"),
}


def stacked(ours: Decorator, place: str, theirs: Decorator, function: Any) -> Any:
    return ours(theirs(function)) if place == "above" else theirs(ours(function))


@pytest.fixture
def serve(settings: Any) -> Callable[[Any], Any]:
    """What ``manage.py check`` says of a view that it refuses; else the response to a POST."""
    user = User.objects.create_superuser("operator")

    def serve(view: Any) -> Any:
        urls = ModuleType("urls")
        urls.urlpatterns = [path("view", view)]  # type: ignore[attr-defined]
        settings.ROOT_URLCONF = urls
        found = [each for each in run_checks() if each.is_serious() and str(each.id).startswith("distlock_web")]
        if found:
            return Complaint(f"{found[0].msg} {found[0].hint}")
        client = Client()
        client.force_login(user)
        return client.post("/view")

    return serve


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic requests"])
def in_transaction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


@pytest.mark.parametrize("ours", COLUMNS)
@pytest.mark.parametrize("place", ["above", "below"])
@pytest.mark.parametrize("name", DECORATORS)
def test_a_decorator_of_django(
    serve: Callable[[Any], Any], seen: Seen, in_transaction: bool, name: str, place: str, ours: str
) -> None:
    def pay(request: Any) -> Any:
        seen.body()
        return Response("done") if name == "api_view" else HttpResponse("done")

    row = OTHERWISE.get((name, place, in_transaction), IN_A_TRANSACTION if in_transaction else ALL_LOCKED)
    found = outcome(lambda: stacked(OURS[ours](), place, DECORATORS[name], pay), serve, seen)
    assert found == row[COLUMNS.index(ours)]


def a_class(decorate: Decorator, seen: Seen) -> Any:
    """A class-based view whose ``post`` is decorated so."""

    class Pay(View):
        @decorate
        def post(self, request: HttpRequest) -> HttpResponse:
            seen.body()
            return HttpResponse("done")

    return Pay


def a_viewset(decorate: Decorator, seen: Seen) -> Any:
    class Orders(ViewSet):
        @decorate
        def pay(self, request: Any) -> Response:
            seen.body()
            return Response("done")

    return Orders.as_view({"post": "pay"})


#: Each makes a view of our decorator; by ATOMIC_REQUESTS what comes of it.
CLASSES: dict[str, tuple[Callable[[Decorator, Seen], Any], Row, Row]] = {
    "on a method": (
        lambda ours, seen: a_class(ours, seen).as_view(),
        ALL_LOCKED, ("warned", "at check", "at check", "at check"),
    ),
    "on a method, by method_decorator": (
        lambda ours, seen: a_class(method_decorator(ours), seen).as_view(),
        ALL_LOCKED, ("warned", "at check", "at check", "at check"),
    ),
    "on dispatch": (
        lambda ours, seen: method_decorator(ours, name="dispatch")(a_class(lambda post: post, seen)).as_view(),
        ALL_LOCKED, IN_A_TRANSACTION,
    ),
    "on what as_view() made": (
        lambda ours, seen: ours(a_class(lambda post: post, seen).as_view()), ALL_LOCKED, IN_A_TRANSACTION,
    ),
    "below @action": (
        lambda ours, seen: a_viewset(lambda pay: action(detail=False, methods=["POST"])(ours(pay)), seen),
        ALL_LOCKED, ("warned", "at check", "at check", "at check"),
    ),
    "above @action": (
        lambda ours, seen: a_viewset(lambda pay: ours(action(detail=False, methods=["POST"])(pay)), seen),
        ALL_LOCKED, ("warned", "at check", "at check", "at check"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("ours", COLUMNS)
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_based_view(
    serve: Callable[[Any], Any], seen: Seen, in_transaction: bool, name: str, ours: str
) -> None:
    make, row, in_a_transaction = CLASSES[name]
    found = outcome(lambda: make(OURS[ours](), seen), serve, seen)
    assert found == (in_a_transaction if in_transaction else row)[COLUMNS.index(ours)]


# Flask ---------------------------------------------------------------------------------------------------------------

FLASK: dict[str, Decorator] = {
    "login_required": flask_login.login_required,
    "lru_cache": functools.lru_cache,
    "with wraps": with_wraps,
    "without wraps": without_wraps,
}


def serve_flask(view: Any) -> Any:
    app = Flask("shop")
    app.config.update(DISTLOCK={"default": {"BACKEND": "memory"}}, SECRET_KEY="k", LOGIN_DISABLED=True, TESTING=True)
    DistLock(app)
    flask_login.LoginManager(app).user_loader(lambda pk: None)
    app.add_url_rule("/view", "view", view, methods=["POST"])
    answer = app.test_client().post("/view")
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("ours", ["lock", "once"])
@pytest.mark.parametrize("place", ["above", "below"])
@pytest.mark.parametrize("name", FLASK)
def test_a_decorator_of_flask(seen: Seen, name: str, place: str, ours: str) -> None:
    def pay() -> str:
        seen.body()
        return "done"

    assert outcome(lambda: stacked(OURS[ours](), place, FLASK[name], pay), serve_flask, seen) == "locked"


# Functions that are no views ------------------------------------------------------------------------------------------


def called_of(decorated: Any) -> Any:
    """As an attribute of a class: what a staticmethod, a classmethod or a property is there."""

    class Till:
        pay = decorated

    return Till().pay if isinstance(decorated, property) else Till().pay()


def entered(make: Any) -> Any:
    with make():
        pass


#: Each with how it is called, what comes of ours above it, and below it.
FUNCTIONS: dict[str, tuple[Decorator, Callable[[Any], Any], Row, Row]] = {
    "staticmethod": (staticmethod, called_of, AT_IMPORT, ALL_LOCKED),
    "classmethod": (classmethod, called_of, AT_IMPORT, ALL_LOCKED),
    "property": (property, called_of, AT_IMPORT, ALL_LOCKED),
    "lru_cache": (functools.lru_cache, lambda pay: pay(), ALL_LOCKED, ALL_LOCKED),
    "with wraps": (with_wraps, lambda pay: pay(), ALL_LOCKED, ALL_LOCKED),
    "without wraps": (without_wraps, lambda pay: pay(), ALL_LOCKED, ALL_LOCKED),
    "atomic": (
        transaction.atomic, lambda pay: pay(),
        ALL_LOCKED, ("warned", "at the call", "at the call", "at the call"),
    ),
    "contextmanager": (as_generator, entered, AT_IMPORT, ALL_LOCKED),
    "a generator": (generating, lambda pay: list(pay()), AT_IMPORT, ALL_LOCKED),
    "a generator behind __call__": (CalledAsGenerator, lambda pay: list(pay()), AT_IMPORT, ALL_LOCKED),
    "a generator without wraps": (
        lambda pay: without_wraps(generating(pay)), lambda pay: list(pay()),
        ("at the call", "at the call", "at the call", "at the call"), ALL_LOCKED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("ours", COLUMNS)
@pytest.mark.parametrize("place", ["above", "below"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_decorator_of_a_plain_function(seen: Seen, name: str, place: str, ours: str) -> None:
    theirs, call, above, below = FUNCTIONS[name]

    def pay(*args: Any) -> str:  # the class or the object, where it is a method
        seen.body()
        return "done"

    found = outcome(lambda: stacked(OURS[ours](), place, theirs, pay), call, seen)
    assert found == (above if place == "above" else below)[COLUMNS.index(ours)]
