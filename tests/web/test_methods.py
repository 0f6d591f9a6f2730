"""``methods=``, ``when=``: a view is locked for these requests only, in Django, REST framework and Flask."""

from __future__ import annotations

import asyncio
from typing import Any

import flask
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import clear_url_caches, include, path
from django.utils.decorators import method_decorator
from django.views import View
from flask.views import MethodView
from flask.views import View as FlaskView
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from distlock_web import ConfigurationError, configure, current_lease, distributed_lockable, once
from distlock_web.core import integrations
from distlock_web.flask import DistLock
from distlock_web.testing.plugin import hold_lock

posted = distributed_lockable(key="form", methods=("POST",))

LOCKED = ["POST"]
OPEN = ["GET", "HEAD", "PUT", "OPTIONS"]


def answer() -> str:
    return "without" if current_lease() is None else "locked"


# Django -------------------------------------------------------------------------------------------------------------


@posted
def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse(answer())


@posted
async def coroutine(request: HttpRequest) -> HttpResponse:
    return HttpResponse(answer())


class Form(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(answer())

    post = put = options = get


@method_decorator(posted, name="dispatch")
class Dispatched(Form):
    pass


class AsyncForm(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(answer())

    post = put = options = head = get  # type: ignore[assignment]


@method_decorator(posted, name="dispatch")
class AsyncDispatched(AsyncForm):
    pass


class Methods(View):
    @posted
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(answer())

    post = put = options = get


@api_view(["GET", "HEAD", "POST", "PUT", "OPTIONS"])
@posted
def api_function(request: Any) -> Response:
    return Response(answer())


@method_decorator(posted, name="dispatch")
class API(APIView):
    def get(self, request: Any) -> Response:
        return Response(answer())

    post = put = options = get


class Orders(ViewSet):
    @posted
    def create(self, request: Any) -> Response:
        return Response(answer())

    list = create


router = SimpleRouter(trailing_slash=False)
router.register("orders", Orders, basename="orders")

DJANGO: dict[str, Any] = {
    "function": function, "coroutine": coroutine, "dispatched": Dispatched.as_view(),
    "async-dispatched": AsyncDispatched.as_view(), "methods": Methods.as_view(),
    "async-as-view": posted(AsyncForm.as_view()), "api-function": api_function, "api": API.as_view(),
}  # fmt: skip
urlpatterns = [path("", include(router.urls)), *(path(name, view) for name, view in DJANGO.items())]


@pytest.fixture
def site(settings: Any) -> None:
    configure({"default": {"BACKEND": "memory"}})
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]


async def ask(method: str, name: str) -> Any:
    return await AsyncClient().generic(method, f"/{name}")


@pytest.mark.parametrize("name", [*DJANGO, "orders"])
@pytest.mark.parametrize("asgi", [False, True], ids=["wsgi", "asgi"])
def test_django_locks_what_is_named_and_nothing_else(site: None, name: str, asgi: bool) -> None:
    def request(method: str) -> Any:
        return asyncio.run(ask(method, name)) if asgi else Client().generic(method, f"/{name}")

    methods = ["GET", "OPTIONS"] if name == "orders" else OPEN
    assert "locked" in request("POST").content.decode()
    assert "without" in request("GET").content.decode()
    with hold_lock("form"):
        assert request("POST").status_code == 409
        assert [request(method).status_code for method in methods] == [200] * len(methods)


# Flask --------------------------------------------------------------------------------------------------------------

EVERY = [*LOCKED, *OPEN]


class Resource(MethodView):
    @posted
    def get(self) -> str:
        return answer()

    post = put = options = get


class Whole(FlaskView):
    methods = EVERY
    decorators = (posted,)  # type: ignore[assignment]

    def dispatch_request(self) -> str:
        return answer()


@posted
def plain() -> str:
    return answer()


@posted
async def asynchronous() -> str:
    return answer()


@pytest.fixture
def client() -> Any:
    app = flask.Flask("shop")
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    blueprint = flask.Blueprint("of", "of")
    blueprint.add_url_rule("/blueprint", view_func=plain, methods=EVERY)
    app.register_blueprint(blueprint)
    app.add_url_rule("/plain", view_func=plain, methods=EVERY)
    app.add_url_rule("/asynchronous", view_func=asynchronous, methods=EVERY)
    app.add_url_rule("/resource", view_func=Resource.as_view("resource"), methods=EVERY)
    app.add_url_rule("/whole", view_func=Whole.as_view("whole"), methods=EVERY)
    app.add_url_rule("/helped", view_func=lambda: plain(), endpoint="helped")
    return app.test_client()


@pytest.mark.parametrize("name", ["plain", "asynchronous", "blueprint", "resource", "whole"])
def test_flask_locks_what_is_named_and_nothing_else(client: Any, name: str) -> None:
    assert client.post(f"/{name}").text == "locked"
    assert client.get(f"/{name}").text == "without"
    with client.application.app_context(), hold_lock("form"):
        assert client.post(f"/{name}").status_code == 409
        assert [client.open(f"/{name}", method=method).status_code for method in OPEN] == [200] * len(OPEN)


# when= ---------------------------------------------------------------------------------------------------------------


def pays(request: Any) -> bool:
    return bool("pay" in request.headers.get("X-Action", ""))


async def apays(request: Any) -> bool:
    return pays(request)


def chosen(view: Any, when: Any, **options: Any) -> Any:
    return distributed_lockable(key="form", when=when, **options)(view)


@pytest.fixture(params=["django", "django-async", "flask", "flask-async"])
def choosing(request: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that asks a view with this ``when`` and options, and gives status and text."""
    framework, _, colour = request.param.partition("-")
    is_django = framework == "django"

    def reply() -> Any:
        return HttpResponse(answer()) if is_django else answer()

    def plainly(*args: Any) -> Any:
        return reply()

    async def asynchronously(*args: Any) -> Any:
        return reply()

    configure({"default": {"BACKEND": "memory"}})

    def asked(when: Any, *actions: str, method: str = "POST", **options: Any) -> list[str]:
        view = chosen(asynchronously if colour else plainly, when, **options)
        if is_django:
            monkeypatch.setitem(globals(), "urlpatterns", [path("", view)])
            settings.ROOT_URLCONF = __name__
            clear_url_caches()
            found = [Client().generic(method, "/", headers={"X-Action": action}) for action in actions]
            return [one.content.decode() for one in found]
        app = flask.Flask("shop")
        app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
        DistLock(app)
        app.add_url_rule("/", "view", view, methods=EVERY)
        client = app.test_client()
        return [client.open("/", method=method, headers={"X-Action": action}).text for action in actions]

    asked.asynchronous = bool(colour)  # type: ignore[attr-defined]
    return asked


def test_only_requests_for_which_it_is_true_are_locked(choosing: Any) -> None:
    assert choosing(pays, "pay", "look") == ["locked", "without"]
    assert choosing(pays, "pay", "look", method="GET") == ["locked", "without"]


def test_with_methods_both_have_to_hold(choosing: Any) -> None:
    assert choosing(pays, "pay", "look", methods=("POST",)) == ["locked", "without"]
    assert choosing(pays, "pay", "look", method="PUT", methods=("POST",)) == ["without", "without"]


def test_it_may_be_async_where_the_view_is(choosing: Any) -> None:
    if choosing.asynchronous:
        assert choosing(apays, "pay", "look") == ["locked", "without"]
        assert choosing(lambda request: apays(request), "pay", "look") == ["locked", "without"]
    else:
        with pytest.raises(ConfigurationError, match=r"when is .*coroutine function"):
            choosing(apays, "pay")


@pytest.mark.parametrize("given", [True, "POST", ("POST",)])
def test_what_is_no_function_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"when is .*a function of the request"):
        chosen(function, given)


def test_when_is_for_views(site: None) -> None:
    with pytest.raises(ConfigurationError, match=r"when= is for views.*no request"):
        chosen(lambda order: None, pays)(7)


def test_once_runs_each_time_where_it_is_not_chosen(site: None) -> None:
    runs = []

    def pay(request: HttpRequest) -> HttpResponse:
        runs.append(request.headers.get("X-Action"))
        return HttpResponse("done")

    view = once(key="form", keep=60, when=pays)(pay)
    for action in ("look", "look", "pay", "pay"):
        assert view(RequestFactory().post("/", headers={"X-Action": action})).content == b"done"
    assert runs == ["look", "look", "pay"]


# Both ---------------------------------------------------------------------------------------------------------------


def test_get_is_head_too(site: None) -> None:
    """Both frameworks answer HEAD by the same function."""
    view = distributed_lockable(key="form", methods=["get"])(lambda request: HttpResponse(answer()))

    def text(method: str) -> str:
        request = HttpRequest()
        request.method = method
        return str(view(request).content.decode())

    assert [text(method) for method in ("GET", "HEAD", "POST", "OPTIONS")] == ["locked", "locked", "without", "without"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("POST", r"methods is 'POST'; it has to be several"),
        ((), "methods is of type tuple; it has to be several names"),
        (("P OST",), "methods is of type tuple; it has to be several names"),
        (("POST", "options"), "OPTIONS, which is never locked"),
    ],
)
def test_what_is_no_list_of_methods_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        distributed_lockable(key="form", methods=given)


@pytest.mark.parametrize("frameworks", ["none", "both"])
def test_a_function_that_is_no_view_is_refused(
    site: None, frameworks: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no framework is loaded, when it is decorated; else at its call, for a view of Flask's has no argument."""
    if frameworks == "none":
        monkeypatch.setattr(integrations, "installed", integrations.Installed())
        with pytest.raises(ConfigurationError, match=r"plain: methods= is for views.*INSTALLED_APPS"):
            distributed_lockable(key="form", methods=("POST",))(plain.__wrapped__)  # type: ignore[attr-defined]
        return
    refused = r"plain: methods= is for views.*no request"
    with pytest.raises(ConfigurationError, match=refused):
        plain()
    with pytest.raises(ConfigurationError, match="asynchronous: methods= is for views"):
        asyncio.run(asynchronous())
    client.application.testing = True
    with pytest.raises(ConfigurationError, match=refused):
        client.get("/helped")  # of a request's, but not its view
    with client.application.app_context(), pytest.raises(ConfigurationError, match=refused):
        plain()


def test_what_a_key_needs_is_asked_of_locked_requests_alone(site: None) -> None:
    """The form is shown to who has no key yet."""

    @distributed_lockable(key="pay:{request.POST[order]}", methods=("POST",))
    def pay(request: HttpRequest) -> HttpResponse:
        return HttpResponse(answer())

    request = HttpRequest()
    request.method = "GET"
    assert pay(request).content == b"without"
