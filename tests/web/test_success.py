"""``hold_at_least`` is for work that was done: an error, or a redirect to the login page, opens the lock at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import flask
import flask_login
import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.test import Client
from django.urls import path

from distlock_web import ConfigurationError, distributed_lockable
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.flask import DistLock
from distlock_web.web.success import is_failure

kept = distributed_lockable(key="job", hold_at_least=60)


@pytest.mark.parametrize(
    ("failure", "status", "location"),
    [
        (False, 200, None),
        (False, 204, None),
        (True, 400, None),
        (True, 503, None),
        (False, 302, "/thanks/"),
        (False, 302, "/thanks/?order=7&context=next=1"),
        (True, 302, "/enter?next=/orders/7"),
        (True, 303, "https://sso.example/in?a=1&next=%2Forders%2F7"),
        (True, 302, "/accounts/login/"),
        (True, 302, "https://shop.example/accounts/login/?error=1"),
        (False, 302, "/accounts/login/help/"),
        (False, 304, None),
        (False, 302, "http://[no address"),
    ],
)
def test_which_answers_say_that_nothing_was_done(failure: bool, status: int, location: str | None) -> None:
    assert is_failure(status, location, "/accounts/login/") is failure


@pytest.mark.parametrize("login_page", ["", "/", "https://shop.example/"])
def test_a_project_whose_login_page_cannot_be_told_from_a_success(login_page: str) -> None:
    assert not is_failure(302, "/", login_page)
    assert not is_failure(303, "https://shop.example/", login_page)
    assert is_failure(302, "/?next=/a", login_page)


# Django -------------------------------------------------------------------------------------------------------------


@kept
@login_required
def anonymous(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@kept
@login_required(redirect_field_name=None)
def without_next(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


@kept
async def asynchronous(request: HttpRequest) -> HttpResponse:
    return HttpResponse("no", status=422)


@kept
def redirected(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect("/thanks/")


@kept
def home(request: HttpRequest) -> HttpResponse:
    return HttpResponseRedirect("/")


@kept
def streamed(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse([b"done"])


by_its_body = distributed_lockable(
    key="job", hold_at_least=60, success=lambda response: response.content.startswith(b"queued")
)


@by_its_body
def unavailable(request: HttpRequest) -> HttpResponse:
    return HttpResponse("queued for later", status=503)


REFUSING = {
    "anonymous": anonymous, "without_next": without_next, "asynchronous": asynchronous,
}  # fmt: skip
DONE: dict[str, Any] = {
    "redirected": redirected, "home": home, "streamed": streamed,
    "unavailable": unavailable,
}  # fmt: skip
urlpatterns = [path(name, view) for name, view in {**REFUSING, **DONE}.items()]


def nobody(get_response: Any) -> Callable[[Any], Any]:
    def middleware(request: Any) -> Any:
        request.user = AnonymousUser()
        return get_response(request)

    return middleware


@pytest.fixture
def post(memory: None, settings: Any) -> Callable[[str], Any]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware", f"{__name__}.nobody"]

    def post(name: str) -> int:
        answer = Client().post(f"/{name}")
        b"".join(answer)  # to its end, which closes it
        return answer.status_code

    return post


def cooling() -> list[str]:
    return [line.name for line in drive(registry().store("default").port(THREADS).inspect())]


@pytest.mark.parametrize("view", REFUSING)
def test_django_opens_the_lock_after_a_refusal(post: Callable[[str], int], view: str) -> None:
    first = post(view)
    assert cooling() == []
    assert first == post(view) != 409


@pytest.mark.parametrize("view", DONE)
def test_django_keeps_the_lock_after_a_success(post: Callable[[str], int], view: str) -> None:
    assert post(view) in (200, 302, 503)
    assert cooling() == ["disLock:job"]
    assert post(view) == 409


def test_a_login_page_that_has_no_route(post: Callable[[str], int], settings: Any) -> None:
    settings.LOGIN_URL = "no-such-name"
    assert post("redirected") == 302
    assert cooling() == ["disLock:job"]


# Flask --------------------------------------------------------------------------------------------------------------


def app() -> flask.Flask:
    app = flask.Flask("shop")
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    answers: dict[str, Callable[[], Any]] = {
        "tuple": lambda: ("no", 400),
        "text": lambda: ("no", "404 NOT FOUND"),
        "headers": lambda: ("no", 302, {"Location": "/login?next=/tuple"}),
        "response": lambda: flask.Response("no", 500),
        "inside": lambda: (flask.Response("no", 403), {"X-Why": "no"}),
        "login": lambda: flask.redirect("/login?next=/login"),
        "generator": lambda: (iter(["no"]), 410),
        "done": lambda: "done",
        "created": lambda: ("done", 201, [("Location", "/orders/7")]),
        "sent": lambda: iter(["done"]),
        "on": lambda: flask.redirect("/thanks"),
    }
    for name, answer in answers.items():
        app.add_url_rule(f"/{name}", name, kept(answer), methods=["POST"])
    return app


@pytest.fixture
def client() -> Iterator[Any]:
    with app().test_client() as client:
        yield client


@pytest.mark.parametrize("view", ["tuple", "text", "headers", "response", "inside", "login", "generator"])
def test_flask_opens_the_lock_after_a_refusal(client: Any, view: str) -> None:
    statuses = [client.post(f"/{view}", buffered=True).status_code for _ in range(2)]
    assert statuses[0] == statuses[1] != 409


@pytest.mark.parametrize("view", ["done", "created", "sent", "on"])
def test_flask_keeps_the_lock_after_a_success(client: Any, view: str) -> None:
    assert client.post(f"/{view}", buffered=True).status_code < 400
    assert client.post(f"/{view}", buffered=True).status_code == 409


@pytest.mark.parametrize(
    ("login_view", "again"),
    [("on", 409), ("thanks", 302), ("/thanks", 302), ("https://shop.example/thanks", 302), ("none", 409), (None, 409)],
)
def test_flask_login_tells_the_login_page(client: Any, login_view: str | None, again: int) -> None:
    """Its redirect has no ``next`` under ``USE_SESSION_FOR_NEXT``."""
    app = client.application
    app.add_url_rule("/thanks", "thanks", lambda: "who are you?")
    app.login_manager = SimpleNamespace(login_view=login_view)
    assert client.post("/on").status_code == 302
    assert client.post("/on").status_code == again


@pytest.mark.parametrize(
    ("address", "statuses"), [("/shop/pay", [302, 302]), ("/bar/pay", [302, 409]), ("/pay", [302, 409])]
)
def test_flask_login_has_a_login_page_for_each_blueprint(client: Any, address: str, statuses: list[int]) -> None:
    app, login = client.application, flask_login.LoginManager()
    login.init_app(app)
    login.login_view, login.blueprint_login_views = "done", {"shop": "welcome", "bar": "sent"}
    app.add_url_rule("/welcome", "welcome", lambda: "who are you?")
    app.add_url_rule("/pay", "pay", kept(lambda: flask.redirect("/welcome")), methods=["POST"])
    for name in ("shop", "bar"):
        blueprint = flask.Blueprint(name, name, url_prefix=f"/{name}")
        view = distributed_lockable(key=name, hold_at_least=60)(lambda: flask.redirect("/welcome"))
        blueprint.add_url_rule("/pay", "pay", view, methods=["POST"])
        app.register_blueprint(blueprint)
    assert [client.post(address).status_code for _ in range(2)] == statuses


def test_a_tuple_of_a_function_that_is_no_view_is_just_a_tuple() -> None:
    locked = kept(lambda: ("rows", 500))
    with app().test_request_context():
        assert locked() == ("rows", 500)
        assert cooling() == ["disLock:job"]


# success= -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(("given", "kept"), [(3, True), (0, False)])
def test_success_of_a_function_that_is_no_view(given: int, kept: bool) -> None:
    """A job that found nothing to do may be asked again at once."""

    @distributed_lockable(key="job", hold_at_least="1h", success=bool)
    def rows(found: int) -> int:
        return found

    assert rows(given) == given
    assert cooling() == (["disLock:job"] if kept else [])


@pytest.mark.usefixtures("memory_store")
def test_an_exception_is_no_success_and_nobody_is_asked() -> None:
    @distributed_lockable(key="job", hold_at_least=60, success=lambda made: pytest.fail("asked"))
    def failing() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        failing()
    assert cooling() == []


@pytest.mark.usefixtures("memory_store")
def test_an_exception_of_success_is_the_calls_own() -> None:
    @distributed_lockable(key="job", hold_at_least=60, success=lambda made: made["done"])
    def job() -> dict[str, int]:
        return {}

    with pytest.raises(KeyError, match="done"):
        job()
    assert cooling() == []


async def acheck(made: object) -> bool:
    return True


@pytest.mark.usefixtures("memory_store")
def test_a_success_that_cannot_be_right_is_refused() -> None:
    for wrong in ("yes", True, 200):
        with pytest.raises(ConfigurationError, match=r"^success is .*; it has to be a function"):
            distributed_lockable(key="job", hold_at_least=60, success=wrong)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="coroutine function; it has to be a plain function"):
        distributed_lockable(key="job", hold_at_least=60, success=acheck)
    with pytest.raises(ConfigurationError, match="success decides whether hold_at_least applies"):
        distributed_lockable(key="job", success=bool)
    job = distributed_lockable(key="job", hold_at_least=60, success=lambda made: acheck(made))(lambda: 1)
    with pytest.raises(ConfigurationError, match="its success gave a coroutine"):
        job()
    assert cooling() == []
