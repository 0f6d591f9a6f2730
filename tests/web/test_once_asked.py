"""Who asks for what, to ``once``: every way to name a caller, and every way in which a body may have been read before.

One rule for all of them: the same caller with the same body gets the answer again, another one gets a 422, and where
it is not known which of the two it is, the call is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from io import BytesIO
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import flask
import flask_login
import pytest
from django.contrib import messages
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.signed_cookies import SessionStore as SignedCookies
from django.core.files.uploadedfile import InMemoryUploadedFile, UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, QueryDict
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from django.utils.functional import SimpleLazyObject
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes, parser_classes, permission_classes
from rest_framework.parsers import (
    BaseParser,
    DataAndFiles,
    FileUploadParser,
    FormParser,
    JSONParser,
    MultiPartParser,
)
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView
from werkzeug.middleware.proxy_fix import ProxyFix

from distlock_web import KeyReused, once
from distlock_web.flask import DistLock
from distlock_web.web.asked import MAX_COMPARED, is_form

KEY = "pay:{request.headers[Idempotency-Key]}"
runs = itertools.count(1)


class Answer(NamedTuple):
    status: int
    text: str
    replayed: bool


#: ``send("POST", "/pay/", b"", "text/plain", **headers)``
Send = Callable[..., Answer]

urlpatterns: list[Any] = []


@pytest.fixture(autouse=True)
def project(settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    settings.ROOT_URLCONF = __name__
    settings.ALLOWED_HOSTS = ["*"]
    settings.MIDDLEWARE = [
        "distlock_web.django.middleware.RequestIDMiddleware",
        f"{__name__}.known",
        f"{__name__}.read",
    ]


def of_django(client: Any) -> Send:
    def send(
        method: str = "POST", address: str = "/pay/", body: bytes = b"", media_type: str = "text/plain", **headers: str
    ) -> Answer:
        said = {"Idempotency-Key": "k", **{name.replace("_", "-"): value for name, value in headers.items()}}
        response = client.generic(method, address, body, media_type, headers=said)
        response = asyncio.run(response) if asyncio.iscoroutine(response) else response
        return Answer(response.status_code, response.content.decode(), "Idempotency-Replayed" in response.headers)

    return send


def of_flask(client: Any) -> Send:
    def send(
        method: str = "POST", address: str = "/pay/", body: bytes = b"", media_type: str = "text/plain", **headers: str
    ) -> Answer:
        said = {"Idempotency-Key": "k", **{name.replace("_", "-"): value for name, value in headers.items()}}
        response = client.open(address, method=method, data=body, content_type=media_type, headers=said)
        return Answer(response.status_code, response.text, "Idempotency-Replayed" in response.headers)

    return send


def pay(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"receipt {next(runs)}")


async def apay(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"receipt {next(runs)}")


# Who ----------------------------------------------------------------------------------------------------------------


class Caller(NamedTuple):
    """Somebody, and what the project puts into the request for them. ``person`` None: nobody can say who that is."""

    person: str | None
    put: Mapping[str, Any]
    headers: Mapping[str, str] = {}


class Person:
    is_authenticated, is_anonymous = True, False

    def __init__(self, **said: Any) -> None:
        self.__dict__.update(said)


class Customer(Person):
    pass


class Nobody:
    """No framework knows whether that is logged in."""


DJANGO: dict[str, Caller] = {
    "no user": Caller("a visitor", {}),
    "user None": Caller("a visitor", {"user": None}),
    "a lazy None": Caller("a visitor", {"user": SimpleLazyObject(lambda: None)}),
    "anonymous": Caller("a visitor", {"user": AnonymousUser()}),
    "another method": Caller("a visitor", {"user": Person(is_authenticated=False)}),
    "user 1": Caller("user 1", {"user": Person(pk=1)}),
    "a lazy user 1": Caller("user 1", {"user": SimpleLazyObject(lambda: Person(pk=1))}),
    "user 1 with another token": Caller("user 1", {"user": Person(pk=1), "auth": "b"}, {"Authorization": "JWT b"}),
    "user 2": Caller("user 2", {"user": Person(pk=2)}),
    "user 0": Caller("user 0", {"user": Person(pk=0)}),
    "customer 1": Caller("customer 1", {"user": Customer(pk=1)}),
    "no pk": Caller(None, {"user": Person(id=1, username="ann")}),
    "a lazy user without pk": Caller(None, {"user": SimpleLazyObject(lambda: Person(username="ann"))}),
    "not saved": Caller(None, {"user": User(username="ann")}),
    "a text": Caller(None, {"user": "ann"}),
    "no is_authenticated": Caller(None, {"user": Nobody()}),
    "a program": Caller("program a", {}, {"Authorization": "Bearer a"}),
    "another program": Caller("program b", {}, {"Authorization": "Bearer b"}),
    "a key": Caller("key a", {}, {"X_Api_Key": "a"}),
    "known by a cookie": Caller("token a", {"auth": "a"}),
    "known by another": Caller("token b", {"auth": "b"}),
    "known by a row": Caller("row 7", {"auth": User(pk=7)}),
    "known by another row": Caller("row 8", {"auth": User(pk=8)}),
    "a token that says nothing": Caller(None, {"auth": {"scope": "all"}}),
    "an object that says nothing": Caller(None, {"auth": Person(scope="all")}),
    "such a token in a header": Caller("program c", {"auth": {"scope": "all"}}, {"Authorization": "Bearer c"}),
    "no token": Caller("a visitor", {"auth": {}}),
    "a flag": Caller("a flag", {"auth": True}),
    "a login of the web server's": Caller("ann at the server", {"REMOTE_USER": "ann"}),
    "another login of the web server's": Caller("bob at the server", {"REMOTE_USER": "bob"}),
    "session a": Caller("session a", {"session": Person(session_key="a")}),
    "session b": Caller("session b", {"session": Person(session_key="b")}),
}


def before(get_response: Any, does: Callable[[HttpRequest], object]) -> Any:
    """A middleware of the project's that does this with each request."""

    async def amiddleware(request: HttpRequest) -> Any:
        does(request)
        return await get_response(request)

    def middleware(request: HttpRequest) -> Any:
        does(request)
        return get_response(request)

    return amiddleware if asyncio.iscoroutinefunction(get_response) else middleware


@sync_and_async_middleware
def known(get_response: Any) -> Any:
    """Who asks is known to the project."""

    def name(request: HttpRequest) -> None:
        for attribute, value in DJANGO[request.headers.get("X-Caller", "no user")].put.items():
            if attribute == "REMOTE_USER":
                request.META[attribute] = value
            else:
                setattr(request, attribute, value)

    return before(get_response, name)


class ByMiddleware(BaseAuthentication):
    """REST framework has a user and a token of its own, which it asks for as late as that."""

    def authenticate(self, request: Any) -> Any:
        put = dict(DJANGO[request.headers.get("X-Caller", "no user")].put)
        return (put.get("user"), put.get("auth")) if put.keys() & {"user", "auth"} else None


class Late(APIView):
    """As its documentation has it for a lazy authentication."""

    authentication_classes = (ByMiddleware,)

    def perform_authentication(self, request: Any) -> None:
        pass

    @once(key=KEY, keep=60)
    def post(self, request: Any) -> Response:
        return Response(f"receipt {next(runs)}")


urlpatterns += [
    path("pay/", once(key=KEY, keep=60)(pay)),
    path("apay/", once(key=KEY, keep=60)(apay)),
    path("rest/", api_view(["POST"])(authentication_classes([ByMiddleware])(once(key=KEY, keep=60)(pay)))),
    path("late/", Late.as_view()),
]


def check_all_pairs(send: Callable[[Caller, str], Answer], callers: Mapping[str, Caller]) -> None:
    """Each has paid, under a key of its own, and then all others ask with that key."""
    for first in callers:
        answer = send(callers[first], first)
        if callers[first].person is None:
            assert answer.status == 500, f"{first} is known to nobody, and got an answer: {answer}"
            continue
        assert (answer.status, answer.replayed) == (200, False), first
        for second in callers:
            again = send(callers[second], first)
            if callers[second].person == callers[first].person:
                assert again == Answer(200, answer.text, True), f"{first} is {second}"
            else:
                assert answer.text not in again.text, f"{second} was shown the receipt of {first}"
                assert again.status == (500 if callers[second].person is None else 422), f"{second} is not {first}"


@pytest.mark.parametrize("view", ["pay", "apay", "rest", "late"])
def test_django_shows_a_receipt_to_nobody_else(view: str) -> None:
    callers = {name: (caller, name) for name, caller in DJANGO.items()}

    def send(caller: Caller, key: str) -> Answer:
        client: Any = (AsyncClient if view == "apay" else Client)(raise_request_exception=False)
        name = next(name for name, (each, _) in callers.items() if each is caller)
        headers = {"Idempotency_Key": key, "X_Caller": name, **caller.headers}
        return of_django(client)(address=f"/{view}/", **headers)

    check_all_pairs(send, DJANGO)


def test_django_says_which_user_it_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(raise_request_exception=False)
    of_django(client)(X_Caller="no pk")
    assert f"the user of this request is a {__name__}.Person, which does not say who it is" in caplog.text
    of_django(client)(X_Caller="a token that says nothing")
    assert "request.auth is a dict, which does not say who it is" in caplog.text


class Staff(flask_login.UserMixin):
    def __init__(self, ident: Any) -> None:
        self.id = ident


class Buyer(Staff):
    pass


#: ``put``: what Flask-Login has of it, what the session says.
FLASK: dict[str, Caller] = {
    "nobody": Caller("a visitor", {}),
    "staff 7": Caller("staff 7", {"login": Staff(7)}),
    "staff 7 with another token": Caller("staff 7", {"login": Staff("7")}, {"Authorization": "JWT b"}),
    "staff 7 who buys, too": Caller("staff 7", {"login": Staff("7"), "session": {"user_id": 8}}),
    "staff 8": Caller("staff 8", {"login": Staff(8)}),
    "buyer 7": Caller("buyer 7", {"login": Buyer(7)}),
    "by the session": Caller("user_id 7", {"session": {"user_id": 7}}),
    "by the session as text": Caller("user_id 7", {"session": {"user_id": "7", "cart": 1}}),
    "by the name of Flask-Login's": Caller("_user_id 7", {"session": {"_user_id": "7"}}),
    "staff without id": Caller(None, {"login": Person(get_id=lambda: None)}),
    "cart 1": Caller("cart 1", {"session": {"cart": 1}}),
    "cart 1 as text": Caller("cart '1'", {"session": {"cart": "1"}}),
    "cart 1 and messages": Caller("cart 1", {"session": {"cart": 1, "_flashes": [("info", "x")]}}),
    "a program": Caller("program a", {}, {"Authorization": "Bearer a"}),
    "a key": Caller("key a", {}, {"X_Api_Key": "a"}),
    "a login of the web server's": Caller("ann at the server", {"server": "ann"}),
    "another login of the web server's": Caller("bob at the server", {"server": "bob"}),
}


def test_flask_shows_a_receipt_to_nobody_else() -> None:
    app = flask.Flask("shop")
    app.secret_key = "not for the client"
    app.config["PROPAGATE_EXCEPTIONS"] = False
    DistLock(app)
    manager = flask_login.LoginManager(app)
    manager.request_loader(lambda request: FLASK[request.headers["X-Caller"]].put.get("login"))

    @app.before_request
    def put() -> None:
        said = FLASK[flask.request.headers["X-Caller"]].put
        flask.session.update(said.get("session", {}))
        if "server" in said:
            flask.request.environ["REMOTE_USER"] = said["server"]

    app.add_url_rule("/pay/", "pay", once(key=KEY, keep=60)(lambda: f"receipt {next(runs)}"), methods=["POST"])

    def send(caller: Caller, key: str) -> Answer:
        name = next(name for name, each in FLASK.items() if each is caller)
        return of_flask(app.test_client())(Idempotency_Key=key, X_Caller=name, **caller.headers)

    check_all_pairs(send, FLASK)


def charge(order: int, items: int, request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"receipt {next(runs)}")


class Till:
    def charge(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"receipt {next(runs)}")


CALLS: dict[str, Callable[[Any], Any]] = {
    "first": lambda request: once(key=KEY, keep=60)(pay)(request),
    "by name": lambda request: once(key=KEY, keep=60)(pay)(request=request),
    "of a method": lambda request: once(key=KEY, keep=60)(Till.charge)(Till(), request),
    "of a method by name": lambda request: once(key=KEY, keep=60)(Till.charge)(Till(), request=request),
    "third": lambda request: once(key=KEY, keep=60)(charge)(1, 2, request),
    "last by name": lambda request: once(key=KEY, keep=60)(charge)(1, items=2, request=request),
}


@pytest.mark.parametrize("how", CALLS)
def test_a_request_is_one_wherever_it_stands(how: str, rf: Any) -> None:
    """By name, or behind other arguments, it was none: who asks was not compared, and the second call got None."""

    def call(caller: str) -> Any:
        request = rf.post("/", headers={"Idempotency-Key": "k"})
        request.user = Person(pk=caller)
        return CALLS[how](request)

    first, again = call("ann"), call("ann")
    assert (again.content, again.headers["Idempotency-Replayed"]) == (first.content, "true")
    with pytest.raises(KeyReused):
        call("bob")


def test_a_bare_request_of_a_unit_test_is_compared() -> None:
    """It has no host, no method, no media type and no stream."""

    def call(body: bytes | None = None, **fields: str) -> Any:
        request = HttpRequest()
        request.META["HTTP_IDEMPOTENCY_KEY"] = "k"
        if body is not None:
            request._body = body
        if fields:
            request.method, request.content_type = "POST", "application/x-www-form-urlencoded"
            request.POST = QueryDict("&".join(f"{name}={value}" for name, value in fields.items()))
        return once(key=KEY, keep=60)(pay)(request)

    first = call()
    assert call().content == first.content
    for others in ({"body": b"apples"}, {"a": "1"}):
        with pytest.raises(KeyReused):
            call(**others)


# Visitors, by their session -----------------------------------------------------------------------------------------


class SessionStore(SignedCookies):
    """As other packages have it: a session in a cookie of their own kind."""


def begin(request: HttpRequest) -> HttpResponse:
    request.session["basket"] = request.GET["basket"]
    return HttpResponse("a form")


@once(key=KEY, keep=60)
def pay_and_tell(request: HttpRequest) -> HttpResponse:
    messages.info(request, "Thank you")
    return HttpResponse(f"receipt {next(runs)}")


urlpatterns += [path("begin/", begin), path("tell/", pay_and_tell)]


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("engine", ["django.contrib.sessions.backends.cache", SignedCookies.__module__, __name__])
def test_a_visitors_second_click_is_theirs_and_nobody_elses(engine: str, save: bool, settings: Any) -> None:
    """A cookie that is signed anew with each answer is the same session; and so is one with a message to show."""
    sites = "django.contrib"
    settings.SESSION_ENGINE, settings.SESSION_SAVE_EVERY_REQUEST = engine, save
    settings.MESSAGE_STORAGE = f"{sites}.messages.storage.session.SessionStorage"
    settings.MIDDLEWARE = [
        "distlock_web.django.middleware.RequestIDMiddleware",
        f"{sites}.sessions.middleware.SessionMiddleware",
        f"{sites}.messages.middleware.MessageMiddleware",
    ]
    clock = itertools.count(1_800_000_000)
    visitor, another = Client(), Client()
    with patch("django.core.signing.time.time", lambda: next(clock)):  # which is in what is signed, in seconds
        visitor.get("/begin/?basket=1")
        another.get("/begin/?basket=2")
        for address in ("/pay/", "/tell/"):
            first = of_django(visitor)(address=address, Idempotency_Key=address)
            assert of_django(visitor)(address=address, Idempotency_Key=address) == first._replace(replayed=True)
            assert of_django(another)(address=address, Idempotency_Key=address).status == 422
            assert of_django(Client())(address=address, Idempotency_Key=address).status == 422


# Where --------------------------------------------------------------------------------------------------------------

#: Who serves both, and by which header a tenant is known there.
TENANTS: dict[str, tuple[dict[str, Any], Callable[[str], dict[str, str]]]] = {
    "its own Host": ({}, lambda name: {"Host": name}),
    "behind a proxy": ({"USE_X_FORWARDED_HOST": True}, lambda name: {"Host": "backend", "X_Forwarded_Host": name}),
    "not allowed": ({"ALLOWED_HOSTS": ["shop.example"]}, lambda name: {"Host": name}),
}


@pytest.mark.parametrize("how", TENANTS)
def test_a_tenant_gets_no_receipt_of_another(how: str, settings: Any) -> None:
    said, headers = TENANTS[how]
    for name, value in said.items():
        setattr(settings, name, value)
    send = of_django(Client())
    first = send(**headers("a.example"))
    assert send(**headers("a.example")) == first._replace(replayed=True)
    assert send(**headers("b.example")).status == 422


def test_flask_knows_a_tenant_behind_a_proxy() -> None:
    app = flask.Flask("shop")
    DistLock(app)
    app.wsgi_app = ProxyFix(app.wsgi_app, x_host=1)  # type: ignore[method-assign]
    app.add_url_rule("/pay/", "pay", once(key=KEY, keep=60)(lambda: f"receipt {next(runs)}"), methods=["POST"])
    send = of_flask(app.test_client())
    first = send(X_Forwarded_Host="a.example")
    assert send(X_Forwarded_Host="a.example") == first._replace(replayed=True)
    assert send(X_Forwarded_Host="b.example").status == 422


# For what: a body that somebody has read before ----------------------------------------------------------------------

Content = Callable[[str], bytes]


def multipart(*parts: tuple[str, str], file: str = 'filename="list.txt"', media_type: str = "text/plain") -> Content:
    """The first of the parts is a file, with what its header says of it; the others are fields."""

    def make(boundary: str) -> bytes:
        lines = []
        for number, (name, value) in enumerate(parts):
            said = f"; {file}\r\nContent-Type: {media_type}" if number == 0 and file else ""
            lines.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{said}\r\n\r\n{value}\r\n')
        return "".join([*lines, f"--{boundary}--\r\n"]).encode()

    return make


def plain(text: str) -> Content:
    return lambda boundary: text.encode()


#: By media type: bodies that differ from each other, as the view may see it.
BODIES: dict[str, tuple[Content, ...]] = {
    "application/json": tuple(map(plain, ('{"amount": 1}', '{"amount": 2}', '{"amount": 1, "to": 7}', "{}"))),
    "text/plain": tuple(map(plain, ("apples", "apple", "pears!", ""))),
    "application/octet-stream": tuple(map(plain, ("apples", "pears!"))),
    "application/x-www-form-urlencoded": tuple(map(plain, ("a=1&b=2", "a=1&b=3", "a=1&a=2", "a=1", "a=2&a=1"))),
    "multipart/form-data": (
        multipart(("scan", "apples"), ("amount", "1")),
        multipart(("scan", "apples"), ("amount", "2")),
        multipart(("scan", "pears!"), ("amount", "1")),
        multipart(("scan", ""), ("amount", "1")),
        multipart(("copy", "apples"), ("amount", "1")),
        multipart(("scan", "apples"), ("amount", "1"), file='filename="other.txt"'),
        multipart(("scan", "apples"), ("amount", "1"), media_type="text/html"),
        multipart(("scan", "apples"), ("amount", "1"), file=""),
        multipart(("scan", "list.txt"), ("scan", hashlib.sha256(b"apples").hexdigest()), ("amount", "1"), file=""),
        multipart(),
    ),
}
#: Who reads in these ways leaves nothing to compare.
STREAMS = {
    "read()", "read(3)", "readline()", "lines", "read(), POST",
    "stream", "stream(3)", "get_data uncached", "get_json uncached", "stream, form",
}  # fmt: skip
boundaries = (f"boundary{number}" for number in itertools.count())
DJANGO_READS: dict[str, Callable[[HttpRequest], object]] = {
    "nothing": lambda request: None,
    "body": lambda request: request.body,
    "POST": lambda request: request.POST,
    "FILES": lambda request: [file.read() for file in request.FILES.values()],
    "body, POST": lambda request: (request.body, request.POST),
    "read()": lambda request: request.read(),
    "read(3)": lambda request: request.read(3),
    "readline()": lambda request: request.readline(),
    "lines": list,
    "read(), POST": lambda request: (request.read(), request.POST),
}
REST_READS: dict[str, Callable[[Any], object]] = {
    "data": lambda request: request.data,
    "POST": lambda request: request.POST,
    "FILES": lambda request: [file.read() for file in request.FILES.values()],
    "body": lambda request: request.body,
    "stream": lambda request: request.stream and request.stream.read(),
}


@sync_and_async_middleware
def read(get_response: Any) -> Any:
    return before(get_response, lambda request: DJANGO_READS[request.headers.get("X-Read", "nothing")](request))


class Reads(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        if name := request.headers.get("X-Read-Later"):
            REST_READS[name](request)
        return True


def seen(request: Any) -> str:
    """What a view can see of its body, by whatever is left."""
    attempts: dict[str, Callable[[], object]] = {
        "form": lambda: sorted(request.POST.lists()),
        "files": lambda: [(name, file.name, file.read()) for name, file in sorted(request.FILES.items())],
        "stream": request.read,
        "body": lambda: request.body,
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            found[name] = repr(attempt() or "")
        except Exception as error:
            found[name] = type(error).__name__
        # Of a form that was sent empty, once has kept the bytes, which are lost without it.
        is_parsed = is_form(request.content_type.partition(";")[0]) and (
            request.method == "POST" or hasattr(request, "_request")
        )
        if (name == "files" and (is_parsed or any(len(each) > 2 for each in found.values()))) or (
            name == "stream" and len(found[name]) > 3
        ):
            break
    return json.dumps(found)


def see(request: Any) -> HttpResponse:
    return HttpResponse(seen(request))


async def asee(request: Any) -> HttpResponse:
    return HttpResponse(seen(request))


class AsLines(BaseParser):
    """Of the project's own: what it makes of a body is no JSON, and it keeps no bytes."""

    media_type = "text/plain"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return {"lines": stream.read().splitlines()}


def rest(view: Any, last: Any) -> Any:
    parsers = [JSONParser, FormParser, MultiPartParser, last]
    return api_view(["POST", "PUT"])(parser_classes(parsers)(permission_classes([Reads])(view)))


VIEWS: dict[str, Any] = {"see": see, "asee": asee}
for name, view in VIEWS.items():
    urlpatterns += [path(f"{name}/", view), path(f"once/{name}/", once(key=KEY, keep=60)(view))]
PARSERS: dict[str, type[BaseParser]] = {"rest": FileUploadParser, "rest-lines": AsLines}
for name, parser in PARSERS.items():
    urlpatterns += [
        path(f"{name}/see/", rest(see, parser)),
        path(f"once/{name}/see/", rest(once(key=KEY, keep=60)(see), parser)),
    ]


# Every way in which a view reads a body, after it was compared -------------------------------------------------------

DJANGO_THEN: dict[str, Callable[[Any], object]] = {
    "body": lambda request: request.body,
    "POST": lambda request: sorted(request.POST.items()),
    "FILES": lambda request: [(name, file.name, file.read()) for name, file in sorted(request.FILES.items())],
    "read()": lambda request: request.read(),
    "read(3), read()": lambda request: (request.read(3), request.read()),
    "lines": list,
    "body, POST": lambda request: (request.body, sorted(request.POST.items())),
}
REST_THEN: dict[str, Callable[[Any], object]] = {
    "data": lambda request: [
        (name, value.read() if hasattr(value, "read") else value) for name, value in sorted(request.data.items())
    ],
    "stream": lambda request: request.stream and request.stream.read(),
}


def what(ways: Mapping[str, Callable[[Any], object]], request: Any) -> str:
    """What a view sees in the way that it was told, or the error that it gets."""
    try:
        return repr(ways[request.headers["X-Then"]](request))
    except Exception as error:
        return type(error).__name__


def then(request: Any) -> HttpResponse:
    return HttpResponse(what({**DJANGO_THEN, **REST_THEN}, request))


async def athen(request: Any) -> HttpResponse:
    return then(request)


class AsDictionaries(MultiPartParser):
    """As a project's parsers of nested forms, or of JSON beside files, have it."""

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        found: Any = super().parse(*args, **kwargs)
        return DataAndFiles(found.data.dict(), found.files.dict())


class AsNumbers(FormParser):
    """What a form says is what the project makes of it."""

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        found = super().parse(*args, **kwargs).copy()
        for name, several in found.lists():
            found.setlist(name, [Decimal(each) for each in several])
        return found


THEN: dict[str, Any] = {"then": then, "athen": athen}
for name, several in {
    "rest": [JSONParser, FormParser, MultiPartParser, FileUploadParser],
    "rest-json": [JSONParser],
    "rest-own": [JSONParser, AsNumbers, AsDictionaries, AsLines],
    "rest-upload": [FileUploadParser],
}.items():
    THEN[f"{name}-then"] = several
for name, view in THEN.items():
    both = {"": then, "once/": once(key=KEY, keep=60)(then)} if isinstance(view, list) else {}
    both = both or {"": view, "once/": once(key=KEY, keep=60)(view)}
    for at, each in both.items():
        made = (
            api_view(["POST", "PUT", "PATCH", "DELETE"])(parser_classes(view)(each)) if isinstance(view, list) else each
        )
        urlpatterns.append(path(f"{at}{name}/", made))


@pytest.mark.parametrize("by_ninja", [False, True])
@pytest.mark.parametrize("view", THEN)
def test_a_view_of_django_reads_its_body_as_without_once(view: str, by_ninja: bool, settings: Any) -> None:
    """``by_ninja``: behind its middleware, which parses a form of each method."""
    if by_ninja:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "ninja.compatibility.files.fix_request_files_middleware"]
    client: Any = (AsyncClient if view == "athen" else Client)(raise_request_exception=False)
    ways = [*DJANGO_THEN, *(REST_THEN if view.startswith("rest") else ())]
    methods = ("PATCH", "DELETE") if by_ninja else ("POST", "PUT")
    for method, media_type, way in itertools.product(methods, BODIES, ways):
        said = {"X_Then": way, "Content_Disposition": "attachment; filename=list.txt"}

        def send(
            at: str, body: bytes, media_type: str, key: str, method: str = method, said: dict[str, str] = said
        ) -> Answer:
            return of_django(client)(method, f"{at}{view}/", body, media_type, Idempotency_Key=key, **said)

        # By what it says. FileUploadParser, and who has JSON parsers alone, take it for bytes.
        is_read = view in ("rest-then", "rest-own-then") if "rest" in view else method == "POST" or by_ninja
        alike = is_form(media_type) and is_read and "body" not in way and way not in SEE_BOUNDARIES
        assert not check_bodies(send, f"{method} {way}", media_type, alike), f"{method} {media_type} {way}"


#: A view that reads in these ways sees the boundary between the parts of a form; it is asked with the same one.
SEE_BOUNDARIES = {"read()", "read(3), read()", "lines", "stream"}


def check_bodies(send: Callable[..., Answer], how: str, media_type: str, form: bool) -> bool:
    """A body is sent under a key of its own, then all others are, with that key. Whether one with content is refused.

    ``form``: it counts by what it says, so another boundary makes no difference.
    """
    contents, gone = BODIES[media_type], False
    for first in {contents[0], contents[-1]}:
        key, boundary = secrets.token_hex(), next(boundaries)

        def post(content: Content, boundary: str = boundary, key: str = key, at: str = "once/") -> Answer:
            told = f"; boundary={boundary}" if media_type.startswith("multipart") else ""
            return send(f"/{at}", content(boundary), media_type + told, key)

        answer, wanted = post(first), post(first, at="")
        if answer.status >= 400:
            assert answer.status in (400, 415, 500)
            gone = gone or first(boundary) != b""
            continue
        assert answer == wanted, f"{how}, {media_type}: the view reads it as without once"
        assert post(first, next(boundaries) if form else boundary) == answer._replace(replayed=True), (how, media_type)
        for second in contents:
            if second is not first:
                other = post(second, next(boundaries))
                assert other.status in (422, 400, 500), f"{how}, {media_type}: {second('b')!r} is {first('b')!r}"
    return gone


@pytest.mark.parametrize("how", DJANGO_READS)
@pytest.mark.parametrize("view", ["see", "asee", "rest/see"])
def test_a_body_that_django_has_read_before(view: str, how: str) -> None:
    client: Any = (AsyncClient if view == "asee" else Client)(raise_request_exception=False)
    for method, media_type in itertools.product(("POST", "PUT"), BODIES):

        def send(at: str, body: bytes, media_type: str, key: str, method: str = method) -> Answer:
            said = {"Idempotency_Key": key, "X_Read": how, "Content_Disposition": "attachment; filename=list.txt"}
            return of_django(client)(method, f"{at}{view}/", body, media_type, **said)

        # Django itself reads a form of a POST alone.
        form = is_form(media_type) and (method == "POST" or view == "rest/see")
        gone = check_bodies(send, f"{method} {how}", media_type, form)
        assert gone == (how in STREAMS), f"{method} {media_type}: what is gone cannot be compared, and all else is"


@pytest.mark.parametrize("how", REST_READS)
@pytest.mark.parametrize("view", ["rest", "rest-lines"])
def test_a_body_that_rest_framework_has_read_before(view: str, how: str) -> None:
    client = Client(raise_request_exception=False)
    for method, media_type in itertools.product(("POST", "PUT"), BODIES):

        def send(at: str, body: bytes, media_type: str, key: str, method: str = method) -> Answer:
            said = {"Idempotency_Key": key, "X_Read_Later": how}
            said["Content_Disposition"] = "attachment; filename=list.txt"
            return of_django(client)(method, f"{at}{view}/see/", body, media_type, **said)

        gone = check_bodies(send, f"{method} {how}", media_type, is_form(media_type) and how != "body")
        # What no parser reads is a 415, with and without once.
        unread = view == "rest-lines" and media_type == "application/octet-stream" and how not in ("body", "stream")
        assert gone == (unread or how in STREAMS), f"{method} {media_type}"


def test_the_error_says_how_to_read_a_body(caplog: pytest.LogCaptureFixture) -> None:
    client = of_django(Client(raise_request_exception=False))
    assert client(address="/once/see/", body=b"{}", X_Read="read()").status == 500
    assert "has to read request.body, as in json.loads(request.body), and not the stream" in caplog.text


def test_a_limit_of_the_project_is_for_those_who_read_at_once(settings: Any) -> None:
    """A view may read a larger body in pieces. That was compared by its length."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 5
    send = of_django(Client(raise_request_exception=False))
    first, other = send(address="/once/see/", body=b"apples"), send(address="/once/see/", body=b"pears!")
    assert (json.loads(first.text)["stream"], other.status) == ("b'apples'", 422)
    assert send(address="/once/see/", body=b"apples") == first._replace(replayed=True)


@pytest.mark.parametrize("limit", [None, 5, MAX_COMPARED])
@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"]
)
def test_a_body_that_does_not_say_how_long_it_is(media_type: str, limit: int | None, settings: Any) -> None:
    """It is there under ASGI, in a file. Two of them were one body; or Django, of a long one, left it at its end."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = limit
    one, other = (content("b") for content in BODIES[media_type.partition(";")[0]][:2])

    def request(body: bytes, way: str) -> ASGIRequest:
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [
            (b"idempotency-key", way.encode()), (b"host", b"testserver"), (b"content-type", media_type.encode()),
            (b"transfer-encoding", b"chunked"), (b"x-then", way.encode()),
        ]}  # fmt: skip
        return ASGIRequest(scope, BytesIO(body))

    view: Any = once(key=KEY, keep=60)(athen)
    for way in DJANGO_THEN:
        wanted = asyncio.run(athen(request(one, way))).content
        assert asyncio.run(view(request(one, way))).content == wanted, way
        with pytest.raises(KeyReused):
            asyncio.run(view(request(other, way)))
        assert "Idempotency-Replayed" in asyncio.run(view(request(one, way))).headers


class InABucket(UploadedFile):  # type: ignore[type-arg]
    def tell(self) -> int:
        raise OSError("sent elsewhere")


class Elsewhere(FileUploadHandler):
    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        pass

    def file_complete(self, file_size: int) -> InABucket:
        return InABucket(None, self.file_name, self.content_type, file_size, self.charset)


def test_a_file_that_cannot_be_read_twice_is_refused(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.FILE_UPLOAD_HANDLERS = [f"{__name__}.Elsewhere"]
    body = BODIES["multipart/form-data"][0]("b")
    answer = of_django(Client(raise_request_exception=False))(body=body, media_type="multipart/form-data; boundary=b")
    assert answer.status == 500
    assert (
        "cannot compare the file 'scan' of this form: a InABucket that cannot be read twice (sent elsewhere)"
        in caplog.text
    )


FLASK_READS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "get_data": lambda: flask.request.get_data(),
    "data": lambda: flask.request.data,
    "get_json": lambda: flask.request.get_json(force=True, silent=True),
    "form": lambda: flask.request.form,
    "values": lambda: flask.request.values,
    "files": lambda: [file.read() for file in flask.request.files.values()],
    "get_data, form": lambda: (flask.request.get_data(), flask.request.form),
    "stream": lambda: flask.request.stream.read(),
    "stream(3)": lambda: flask.request.stream.read(3),
    "lines": lambda: list(flask.request.stream),
    "get_data uncached": lambda: flask.request.get_data(cache=False),
    "get_json uncached": lambda: flask.request.get_json(force=True, silent=True, cache=False),
    "stream, form": lambda: (flask.request.stream.read(), flask.request.form),
}


class AsOfAServer:
    """A server's own stream: it does not say how much of it was read."""

    def __init__(self, body: bytes) -> None:
        self._body = BytesIO(body)

    def read(self, size: int = -1) -> bytes:
        return self._body.read(size)

    def readline(self, size: int = -1) -> bytes:
        return self._body.readline(size)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        pass


CHUNKED = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
#: It has no Transfer-Encoding, nor need it have a Content-Length.
HTTP_2 = {"wsgi.input_terminated": True, "SERVER_PROTOCOL": "HTTP/2.0", "no length": True}
#: How a server hands a request on.
SERVED: tuple[dict[str, Any], ...] = ({}, {"wsgi.input_terminated": True}, CHUNKED, HTTP_2)


def served_by(app: flask.Flask) -> Any:
    """A client of the app, which may be told to say no length."""
    wsgi_app: Any = app.wsgi_app

    def as_served(environ: Any, start_response: Any) -> Any:
        if environ.pop("no length", False):
            environ.pop("CONTENT_LENGTH", None)
        return wsgi_app(environ, start_response)

    app.wsgi_app = as_served  # type: ignore[method-assign]
    return app.test_client()


def flask_sees() -> Any:
    request = flask.request
    files = [(name, file.filename, file.read()) for name, file in sorted(request.files.items())]
    form = sorted(request.form.lists())
    return {"form": form, "files": repr(files), "body": "" if form or files else request.get_data(as_text=True)}


FLASK_THEN: dict[str, Callable[[Any], object]] = {
    "get_data": lambda request: request.get_data(),
    "data": lambda request: request.data,
    "data, form": lambda request: (request.data, sorted(request.form.items())),
    "form": lambda request: sorted(request.form.items(multi=True)),
    "form, get_data": lambda request: (sorted(request.form.items()), request.get_data()),
    "get_data, form": lambda request: (request.get_data(), sorted(request.form.items())),
    "values": lambda request: sorted(request.values.items()),
    "files": lambda request: [(name, file.filename, file.read()) for name, file in sorted(request.files.items())],
    "get_json": lambda request: request.get_json(force=True, silent=True),
    "stream": lambda request: request.stream.read(),
    "stream(3), stream": lambda request: (request.stream.read(3), request.stream.read()),
    "lines": lambda request: list(request.stream),
}


def flask_view(*, asynchronous: bool) -> Callable[[], Any]:
    def then() -> str:
        return what(FLASK_THEN, flask.request)

    async def athen() -> str:
        return then()

    return athen if asynchronous else then


@pytest.mark.parametrize("way", FLASK_THEN)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_view_of_flask_reads_its_body_as_without_once(way: str, asynchronous: bool) -> None:
    app = flask.Flask("shop")
    DistLock(app)
    methods = ["POST", "DELETE"]
    app.add_url_rule("/", "plain", flask_view(asynchronous=asynchronous), methods=methods)
    locked: Any = once(key=KEY, keep=60)(flask_view(asynchronous=asynchronous))
    app.add_url_rule("/once/", "once", locked, methods=methods)
    client = served_by(app)
    for method, environ, media_type in itertools.product(methods, SERVED, BODIES):
        parsed_once = ("form", "form, get_data", "data", "data, form", "files", "values")
        if environ in (CHUNKED, HTTP_2) and media_type == "multipart/form-data" and way not in parsed_once:
            continue  # it may be of any length, so its bytes are not kept

        def send(
            at: str, body: bytes, media_type: str, key: str, method: str = method, environ: Any = environ
        ) -> Answer:
            headers, served = {"Idempotency-Key": key, "X-Then": way}, {**environ, "wsgi.input": AsOfAServer(body)}
            response = client.open(
                at, method=method, data=body, content_type=media_type, headers=headers, environ_overrides=served
            )
            return Answer(response.status_code, response.text, "Idempotency-Replayed" in response.headers)

        is_seen = way not in parsed_once and way != "get_json"  # the boundary
        alike = is_form(media_type) and not is_seen
        assert not check_bodies(send, f"{method} {way} {environ}", media_type, alike), (method, media_type, environ)


def test_a_form_that_flask_does_not_take_is_compared_by_its_bytes(reading: flask.Flask) -> None:
    """Too long a field, or no text: it has no fields, and all of these were one form, or a 413 before the view."""
    reading.config["MAX_FORM_MEMORY_SIZE"] = 5
    client: Any = reading.test_client()
    client.application.add_url_rule(
        "/ignored/", "ignored", once(key=KEY, keep=60)(lambda: f"receipt {next(runs)}"), methods=["POST"]
    )
    forms = {
        "multipart/form-data; boundary=b": [multipart(("a", value), file="")("b") for value in ("apples", "pears!")],
        "application/x-www-form-urlencoded": [b"a=\xff", b"a=\xfe"],
    }
    for media_type, (one, other) in forms.items():
        said = {"address": "/ignored/", "media_type": media_type, "Idempotency_Key": media_type[:12]}
        first = of_flask(client)(body=one, **said)
        assert first.status == 200
        assert of_flask(client)(body=one, **said) == first._replace(replayed=True)
        assert of_flask(client)(body=other, **said).status == 422


def test_a_field_of_the_rendering_is_not_compared(reading: flask.Flask) -> None:
    """Flask-WTF's may have a name of the project's own, and a prefix where a page has several forms."""
    reading.config["WTF_CSRF_FIELD_NAME"] = "seal"
    send = of_flask(reading.test_client())
    media_type, address = "application/x-www-form-urlencoded", "/once/see/"
    for name in ("csrf_token", "a-csrf_token", "csrfmiddlewaretoken", "seal", "a-seal", "a.seal"):
        said = {"address": address, "media_type": media_type, "Idempotency_Key": name}
        first = send(body=f"a=1&{name}=x".encode(), **said)
        assert send(body=f"a=1&{name}=y".encode(), **said) == first._replace(replayed=True), name
        assert send(body=f"a=2&{name}=x".encode(), **said).status == 422
    for name in ("mycsrf_token", "seals", "conseal"):
        said = {"address": address, "media_type": media_type, "Idempotency_Key": name}
        assert send(body=f"a=1&{name}=x".encode(), **said).status == 200
        assert send(body=f"a=1&{name}=y".encode(), **said).status == 422, name


@pytest.fixture
def reading() -> flask.Flask:
    app = flask.Flask("shop")
    app.config["PROPAGATE_EXCEPTIONS"] = False
    DistLock(app)

    @app.before_request
    def read_it() -> None:
        FLASK_READS[flask.request.headers.get("X-Read", "nothing")]()

    app.add_url_rule("/see/", "plain", lambda: flask_sees(), methods=["POST", "PUT"])
    app.add_url_rule("/once/see/", "once", once(key=KEY, keep=60)(flask_sees), methods=["POST", "PUT"])
    return app


@pytest.mark.parametrize("how", FLASK_READS)
def test_a_body_that_flask_has_read_before(reading: flask.Flask, how: str) -> None:
    client = served_by(reading)
    for environ, media_type in itertools.product(SERVED, BODIES):
        has_no_length = environ in (CHUNKED, HTTP_2)
        if has_no_length and media_type == "multipart/form-data" and how in ("lines", "stream(3)"):
            continue  # nothing tells how much of it has gone

        def send(at: str, body: bytes, media_type: str, key: str, environ: Any = environ) -> Answer:
            headers, served = {"Idempotency-Key": key, "X-Read": how}, {**environ, "wsgi.input": AsOfAServer(body)}
            response = client.post(
                f"{at}see/", data=body, content_type=media_type, headers=headers, environ_overrides=served
            )
            return Answer(response.status_code, response.text, "Idempotency-Replayed" in response.headers)

        gone = check_bodies(send, f"{how} {environ}", media_type, is_form(media_type))
        # Nor is a void form that was looked at before, and does not say how long it is, known to have been void.
        void = has_no_length and media_type == "multipart/form-data" and how in ("data", "form", "values", "files")
        assert gone == (void or how in STREAMS), (media_type, environ)


@pytest.mark.parametrize("how", ["nothing", "form", "values", "files", "get_data, form"])
@pytest.mark.parametrize("stream", [AsOfAServer, BytesIO])
def test_over_http_2_nothing_need_say_that_there_is_no_body(
    reading: flask.Flask, stream: Callable[[bytes], Any], how: str
) -> None:
    """As of fetch(…, {method: "DELETE"}), also where a CSRF protection has looked for a form: it was a 500."""
    twice: Any = once(key=f"inner {KEY}", keep=60)(flask_sees)
    reading.add_url_rule("/twice/see/", "twice", once(key=KEY, keep=60)(twice), methods=["DELETE"])
    reading.add_url_rule("/once/see/", "once, DELETE", once(key=KEY, keep=60)(flask_sees), methods=["DELETE"])
    client = served_by(reading)

    def send(at: str, key: str, body: bytes = b"", said: Mapping[str, str] = MappingProxyType({})) -> Answer:
        served = {**HTTP_2, "CONTENT_TYPE": "", "wsgi.input": stream(body), **said}
        headers = {"Idempotency-Key": key, "X-Read": how}
        response = client.delete(at, headers=headers, environ_overrides=served)
        return Answer(response.status_code, response.text, "Idempotency-Replayed" in response.headers)

    for at in ("/once/see/", "/twice/see/"):
        first = send(at, at)
        assert first.status == 200
        assert send(at, at) == first._replace(replayed=True)
        assert send(at, at, b"{}").status == 422
    # One that was announced may have been read: nothing tells where the stream is a server's own.
    for said in ({"CONTENT_TYPE": "text/plain"}, {"HTTP_TRANSFER_ENCODING": "chunked"}):
        is_known = stream is BytesIO or how in ("nothing", "get_data, form")
        assert send("/once/see/", f"{said}", said=said).status == (200 if is_known else 500)


def test_a_long_body_has_to_say_how_long_it_is(reading: flask.Flask) -> None:
    """All bodies that did not were one body."""
    client, form = served_by(reading), "application/x-www-form-urlencoded"
    for said, media_type in itertools.product((CHUNKED, HTTP_2), ("text/plain", form)):
        for length, status in ((MAX_COMPARED, 200), (MAX_COMPARED + 1, 411)):
            served = {**said, "wsgi.input": AsOfAServer(b"x" * length)}
            headers = {"Idempotency-Key": f"{said} {media_type} {length}"}
            answer = client.post("/once/see/", headers=headers, environ_overrides=served, content_type=media_type)
            assert answer.status_code == status, (said, media_type)


class Untouched(AsOfAServer):
    """A body that is long in coming: nothing reads it but the view."""

    def read(self, size: int = -1) -> bytes:
        pytest.fail("the body was read")


@pytest.mark.parametrize("limit", [500_000, None])
@pytest.mark.parametrize("media_type", ["application/octet-stream", "application/x-www-form-urlencoded"])
def test_a_long_body_is_left_to_the_view(media_type: str, limit: int | None) -> None:
    """A form, too, that the app's own limit does not take. Its fields, else, are all that two long forms differ by."""
    app = flask.Flask("shop")
    app.config["MAX_FORM_MEMORY_SIZE"] = limit
    DistLock(app)
    app.add_url_rule("/", "pay", once(key=KEY, keep=60)(lambda: f"receipt {next(runs)}"), methods=["POST"])
    client: Any = app.test_client()
    with app.test_request_context():
        is_read = flask.request.max_form_memory_size is None and is_form(
            media_type
        )  # Flask 3.0 does not ask the config
    one, other = (f"a={end:x>{MAX_COMPARED}}".encode() for end in "yz")
    stream: Any = AsOfAServer if is_read else Untouched

    def send(body: bytes) -> Any:
        served = {"wsgi.input": stream(body), "CONTENT_LENGTH": str(len(body))}
        headers = {"Idempotency-Key": "k"}
        return client.post("/", headers=headers, content_type=media_type, environ_overrides=served)

    first = send(one)
    assert (first.status_code, send(one).data) == (200, first.data)
    assert send(other).status_code == (422 if is_read else 200)


@pytest.mark.parametrize("protocol", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize("media_type", ["", "text/plain", *filter(is_form, BODIES)])
def test_a_request_without_a_body_waits_for_none(protocol: str, media_type: str) -> None:
    """A server may read its socket for ever where HTTP/1 has announced nothing."""
    app = flask.Flask("shop")
    DistLock(app)

    @app.post("/")
    @once(key=KEY, keep=60)
    def pay() -> str:
        return repr(type(flask.request.stream))  # the server's own

    said = {**HTTP_2, "SERVER_PROTOCOL": protocol, "wsgi.input": Untouched(b""), "CONTENT_TYPE": media_type}
    answer = served_by(app).post(headers={"Idempotency-Key": "k"}, environ_overrides=said)
    assert (answer.status_code, answer.text) == (200, repr(Untouched))


@pytest.mark.parametrize("site", ["see", "asee", "rest/see", "flask"])
def test_a_form_that_says_nothing_is_no_error(site: str, reading: flask.Flask) -> None:
    """A client may send any text as one."""
    media_type = "application/x-www-form-urlencoded"
    if site == "flask":
        send, address = of_flask(reading.test_client()), "/once/see/"
    else:
        send, address = of_django((AsyncClient if site == "asee" else Client)()), f"/once/{site}/"
    first = send(address=address, body=b"&&", media_type=media_type)
    assert first.status == 200
    assert send(address=address, body=b"&&", media_type=media_type) == first._replace(replayed=True)
    assert send(address=address, body=b"a=1", media_type=media_type).status == 422


def test_flask_says_how_to_read_a_body(reading: flask.Flask, caplog: pytest.LogCaptureFixture) -> None:
    assert of_flask(reading.test_client())(address="/once/see/", body=b"{}", X_Read="stream").status == 500
    assert "has to read request.get_data() or request.get_json(), and not the stream" in caplog.text


class Watched(InMemoryUploadedFile):
    """Says in which thread it is read."""

    def __init__(self) -> None:
        super().__init__(BytesIO(b"apples"), "file", "list.txt", "text/plain", 6, None)
        self.readers: set[int] = set()

    def read(self, *args: Any) -> bytes:
        self.readers.add(threading.get_ident())
        return super().read(*args)


@pytest.mark.parametrize("view", [pay, apay])
def test_a_file_is_not_hashed_in_an_event_loop(rf: Any, view: Any) -> None:
    """While one client's 300 MB were, no other request of the worker moved."""
    request, file = rf.post("/", headers={"Idempotency-Key": "k"}), Watched()
    request.FILES.appendlist("file", file)
    response = once(key=KEY, keep=60)(view)(request)
    if asyncio.iscoroutine(response):
        response = asyncio.run(response)
    assert response.status_code == 200
    assert len(file.readers) == 1
    assert (threading.get_ident() in file.readers) is (view is pay)
