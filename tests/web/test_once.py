"""``once`` in a view of Django's, of REST framework's and of Flask's: who gets which answer again, and who does not."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import flask
import ninja
import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import Context, Template, engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views import View
from django.views.decorators.http import condition
from flask.json.provider import DefaultJSONProvider
from flask.sessions import SessionInterface, SessionMixin
from rest_framework.decorators import api_view, renderer_classes
from rest_framework.renderers import BaseRenderer, JSONRenderer, TemplateHTMLRenderer
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet
from werkzeug.exceptions import NotFound

from distlock_web import ConfigurationError, KeyReused, LockBusy, distributed_lockable, once
from distlock_web.core.registry import registry
from distlock_web.flask import DistLock
from distlock_web.locks import once as module
from distlock_web.locks.hooks import Asked
from distlock_web.ops.held_locks import list_all
from distlock_web.web.asked import MAX_COMPARED
from distlock_web.web.kept_answers import MAX_KEPT
from tests.support.waiting import eventually

KEY = "pay:{request.headers[Idempotency-Key]}"
runs = itertools.count(1)
#: What a view says of who may read its answer, and where.
PROTECTING = {
    "Content-Security-Policy": "default-src 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "Access-Control-Allow-Origin": "https://shop.example",
    "Cross-Origin-Resource-Policy": "same-site",
}
#: What the views are told to do, by the name of a case.
ANSWERS: dict[str, Callable[[], tuple[bytes, int, dict[str, str]]]] = {
    "text": lambda: (b"paid", 201, {"Content-Type": "text/plain", "Location": "/orders/7", "X-Debug": "secret"}),
    "page": lambda: ("<p>bezahlt für €".encode(), 200, {"Content-Type": "text/html; charset=utf-8", **PROTECTING}),
    "bytes": lambda: (b"%PDF\xff\x00", 200, {"Content-Type": "application/pdf"}),
    "redirect": lambda: (b"", 302, {"Location": "/thanks/"}),
    "nothing": lambda: (b"", 204, {}),
    "large": lambda: (b"x" * (MAX_KEPT + 1), 200, {"Content-Type": "text/html", "ETag": '"x"'}),
    "refused": lambda: (b"no", 402, {}),
    "broken": lambda: (b"oops", 500, {}),
    "login": lambda: (b"", 302, {"Location": "/accounts/login/?next=/pay/"}),
}


def answer(case: str) -> tuple[bytes, int, dict[str, str]]:
    """What a view answers, and which of all runs it was."""
    number = next(runs)
    if case == "raises":
        raise ValueError("the view's own")
    body, status, headers = ANSWERS[case]()
    return body, status, {**headers, "Link": f"<{number}>"}  # a header that is kept


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def run(self) -> str:
        return self.headers.get("Link", "")

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotency-Replayed") == "true"

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Sent(NamedTuple):
    method: str
    address: str
    body: bytes
    content_type: str
    headers: dict[str, str]
    mount: str


#: ``send("/text/", b"body", method="PUT", key="k", **headers)``
Send = Callable[..., Reply]


def sender(deliver: Callable[[Sent], Reply]) -> Send:
    def send(
        address: str = "/text/",
        body: bytes = b"",
        *,
        method: str = "POST",
        key: str | None = "k",
        mount: str = "",
        content_type: str = "application/json",
        **headers: str,
    ) -> Reply:
        said = {} if key is None else {"Idempotency-Key": key}
        said.update({name.replace("_", "-"): value for name, value in headers.items()})
        return deliver(Sent(method, address, body, content_type, said, mount))

    return send


# Django -------------------------------------------------------------------------------------------------------------


def respond(case: str) -> HttpResponse:
    body, status, headers = answer(case)
    response = HttpResponse(body, status=status, headers=headers)
    response.set_cookie("session", "stolen")
    return response


@once(key=KEY, keep=60)
def pay(request: HttpRequest, case: str) -> HttpResponse:
    return respond(case)


@once(key=KEY, keep=60)
async def apay(request: HttpRequest, case: str) -> HttpResponse:
    return respond(case)


class Pay(View):
    @method_decorator(once(key=KEY, keep=60))
    def post(self, request: HttpRequest, case: str) -> HttpResponse:
        return respond(case)

    put = get = post


urlpatterns = [
    path("sync/<case>/", pay),
    path("async/<case>/", apay),
    path("method/<case>/", Pay.as_view()),
]


def of_django(folder: str) -> Send:
    def deliver(sent: Sent) -> Reply:
        # A client of its own for each request: none sends the cookies of another's answer.
        client: Any = (AsyncClient if folder == "async" else Client)(raise_request_exception=False)
        where = f"{sent.mount if folder == 'async' else ''}/{folder}{sent.address}"
        client.defaults.update(SCRIPT_NAME=sent.mount, root_path=sent.mount)
        made = client.generic(sent.method, where, sent.body, sent.content_type, headers=sent.headers)
        response = asyncio.run(made) if asyncio.iscoroutine(made) else made
        cookies = {"Set-Cookie": str(response.cookies)} if response.cookies else {}
        return Reply(response.status_code, response.content, {**response.headers, **cookies})

    return sender(deliver)


# Flask --------------------------------------------------------------------------------------------------------------


def of_flask() -> Send:
    app = flask.Flask("shop")
    app.secret_key = "not for the client"
    app.config["PROPAGATE_EXCEPTIONS"] = False
    DistLock(app)

    @app.route("/<case>/", methods=["GET", "POST", "PUT"])
    @once(key=KEY, keep=60)
    def pay(case: str) -> Any:
        body, status, headers = answer(case)
        response = flask.make_response(body, status, headers)
        response.set_cookie("session", "stolen")
        return response

    def deliver(sent: Sent) -> Reply:
        response = app.test_client().open(
            sent.address, f"http://localhost{sent.mount}", method=sent.method, data=sent.body,
            content_type=sent.content_type, headers=sent.headers,
        )  # fmt: skip
        return Reply(response.status_code, response.data, dict(response.headers))

    return sender(deliver)


@pytest.fixture(autouse=True)
def project(settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    settings.ROOT_URLCONF = __name__
    settings.ALLOWED_HOSTS = ["*"]
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]


@pytest.fixture(params=["sync", "async", "method", "flask"])
def send(request: pytest.FixtureRequest) -> Send:
    return of_flask() if request.param == "flask" else of_django(request.param)


# What holds in all of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["text", "page", "bytes", "redirect", "nothing"])
def test_the_second_click_gets_the_first_ones_answer(send: Send, case: str) -> None:
    first, second = send(f"/{case}/"), send(f"/{case}/")
    assert (first.status, first.body) == ANSWERS[case]()[1::-1]
    assert second[:2] == first[:2]
    assert (second.replayed, second.run) == (True, first.run)
    assert not first.replayed
    for name in ("Content-Type", "Location", *PROTECTING):
        assert second.headers.get(name) == first.headers.get(name)


def test_who_asks_is_found_out_once_for_each_request(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the body, with all its files."""
    asked, seen = module.whose_record, []

    async def count(*call: Any) -> Asked:
        seen.append(await asked(*call))
        return seen[-1]

    monkeypatch.setattr(module, "whose_record", count)
    assert [send().replayed, send().replayed] == [False, True]
    assert len(seen) == 2


def test_cookies_and_headers_that_nobody_has_allowed_are_not_kept(send: Send) -> None:
    assert {"Set-Cookie", "X-Debug"} <= send().headers.keys()
    assert not {"Set-Cookie", "X-Debug"} & send().headers.keys()


@pytest.mark.parametrize("case", ["refused", "broken", "login", "raises"])
def test_a_failure_may_be_tried_again(send: Send, case: str) -> None:
    before = next(runs)
    first, second = send(f"/{case}/"), send(f"/{case}/")
    assert first.status == second.status
    assert not second.replayed
    assert next(runs) == before + 3


def test_a_large_answer_is_not_kept_but_that_it_is_done_is(send: Send, caplog: pytest.LogCaptureFixture) -> None:
    first, second = send("/large/"), send("/large/")
    assert (second.status, second.replayed, second.run) == (first.status, True, first.run)
    assert second.body == b"This has been done. Its answer was not kept.\n"
    assert second.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "ETag" not in second.headers
    (line,) = [line for line in caplog.messages if "without its answer" in line]
    assert "65,537 bytes" in line


@pytest.mark.parametrize(
    "other",
    [
        {"body": b'{"amount": 2}'},
        {"address": "/text/?amount=2"},
        {"address": "/page/"},
        {"mount": "/fr"},
        {"method": "PUT"},
        {"method": "HEAD"},
        {"content_type": "text/plain"},
        {"Authorization": "Bearer another"},
        {"X_Api_Key": "another"},
        {"Host": "shop.example"},
    ],
    ids=str,
)
def test_the_same_key_of_another_request_is_a_422_without_the_answer(send: Send, other: dict[str, Any]) -> None:
    first = send(body=b'{"amount": 1}')
    assert send(**{"body": b'{"amount": 1}', **other}).status == 422
    again = send(body=b'{"amount": 1}')
    assert (again.run, again.replayed) == (first.run, True)


def test_a_query_that_is_no_text_is_compared_all_the_same() -> None:
    """It was a 500 at each view with ``once``, where Flask itself takes it."""
    app = flask.Flask("shop")
    DistLock(app)
    app.add_url_rule("/", "pay", once(key="q", keep=60)(lambda: "paid"), methods=["POST"])
    queries = ["q=\xff", "q=\xff", "q=\xfe"]
    answers = [app.test_client().post(environ_overrides={"QUERY_STRING": query}).status_code for query in queries]
    assert answers == [200, 200, 422]


def test_the_422_says_why_in_the_form_that_the_client_wants(send: Send) -> None:
    send()
    problem = send(body=b"other", Accept="application/problem+json")
    assert (problem.json["status"], problem.json["code"]) == (422, "lock_key_reused")
    assert "was used for another" in problem.json["detail"]
    page = send(body=b"other", Accept="text/html")
    assert page.headers["Content-Type"].startswith("text/html")
    assert b"paid" not in page.body + json.dumps(problem.json).encode()


@pytest.mark.parametrize("key", [None, "", '""', "  "])
def test_without_a_key_it_is_a_400_that_names_the_header(send: Send, key: str | None) -> None:
    answer = send(key=key, Accept="application/json")
    assert answer.status == 400
    assert answer.json["detail"] == "The request lacks the header Idempotency-Key."


@pytest.mark.parametrize("other", ['"8e03-a"', ' "8e03-a" ', '"8e03-a"; version=1', '"8e03\\-a"'])
def test_a_key_in_quotes_is_the_one_without_them(send: Send, other: str) -> None:
    first = send(key="8e03-a")
    same = send(key=other)
    assert same.replayed is ("\\" not in other)
    assert (same.run == first.run) is same.replayed


def test_a_form_that_is_sent_again_is_the_same_form(send: Send) -> None:
    """Its parts are the same, and neither its boundary nor its CSRF token are."""

    def form(boundary: str, token: str, content: str = "a file") -> Reply:
        parts = [
            'name="amount"\r\n\r\n1',
            f'name="csrfmiddlewaretoken"\r\n\r\n{token}',
            f'name="csrf_token"\r\n\r\n{token}',
            f'name="scan"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n{content}',
        ]
        body = "".join(f"--{boundary}\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
        whole = f"{body}--{boundary}--\r\n".encode()
        return send(body=whole, content_type=f"multipart/form-data; boundary={boundary}")

    first = form("one", "masked")
    assert form("two", "masked otherwise").run == first.run
    assert form("one", "masked", "another file").status == 422
    urlencoded = {"content_type": "application/x-www-form-urlencoded"}
    second = send(key="u", body=b"csrf_token=a&amount=1", **urlencoded)
    assert send(key="u", body=b"amount=1&csrf_token=b", **urlencoded).run == second.run
    assert send(key="u", body=b"amount=1&amount=1", **urlencoded).status == 422


def test_a_body_that_is_too_large_to_be_compared_is_left_to_the_view(send: Send, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None
    first = send(body=b"x" * (MAX_COMPARED + 1))
    assert send(body=b"y" * (MAX_COMPARED + 1)).run == first.run
    assert send(body=b"y" * (MAX_COMPARED + 2)).status == 422, "another length is another body"


@once(key=KEY, keep=60)
def django_reads(request: HttpRequest, how: str) -> HttpResponse:
    reads: dict[str, Callable[[], Any]] = {
        "body": lambda: request.body,
        "stream": lambda: request.read(),
        "lines": lambda: b"".join(request),
        "files": lambda: request.FILES["scan"].read(),
        "form": lambda: request.POST["amount"],
    }
    return HttpResponse(reads[how]())


@once(key=KEY, keep=60)
def flask_reads(how: str) -> Any:
    sent = flask.request
    reads: dict[str, Callable[[], Any]] = {
        "body": sent.get_data,
        "stream": lambda: sent.stream.read(),
        "lines": lambda: b"".join(sent.stream),
        "files": lambda: sent.files["scan"].read(),
        "form": lambda: sent.form["amount"],
    }
    return reads[how]()


urlpatterns += [path("reads/<how>/", django_reads)]


@pytest.mark.parametrize("site", ["django", "flask"])
@pytest.mark.parametrize("how", ["body", "stream", "lines", "files", "form"])
def test_the_view_reads_the_body_as_it_likes(site: str, how: str) -> None:
    media_type, body = "application/json", b'{"a": 1}\n{"b": 2}\n'
    if how in ("files", "form"):
        media_type = MULTIPART_CONTENT
        body = encode_multipart(BOUNDARY, {"amount": "7", "scan": SimpleUploadedFile("a.txt", b"a scan")})
    address, headers = f"/reads/{how}/", {"Idempotency-Key": "k"}
    if site == "django":
        answer: Any = Client().generic("POST", address, body, media_type, headers=headers)
    else:
        app = flask.Flask("shop")
        DistLock(app)
        app.add_url_rule("/reads/<how>/", "reads", flask_reads, methods=["POST"])
        answer = app.test_client().post(address, data=body, content_type=media_type, headers=headers)
    assert answer.text.encode() == {"files": b"a scan", "form": b"7"}.get(how, body)


# Who asks -----------------------------------------------------------------------------------------------------------


class Caller(SimpleNamespace):
    """A user, a session and the headers of a program."""

    user: Any = None
    session: str | None = None


def user(pk: int, kind: str = "User") -> Any:
    return type(kind, (), {"is_authenticated": True, "is_anonymous": False, "pk": pk})()


@once(key="mine:{request.headers[Idempotency-Key]}", keep=60)
def mine(request: Any) -> HttpResponse:
    return respond("text")


@once(key="mine:{request.headers[Idempotency-Key]}", keep=60)
async def amine(request: Any) -> HttpResponse:
    return respond("text")


def asks_the_database() -> Any:
    """A user that is not known before somebody looks: not in an event loop."""
    from django.contrib.contenttypes.models import ContentType

    ContentType.objects.count()
    return user(1)


def call(factory: Any, view: Callable[..., Any], caller: Caller) -> int:
    request = factory.post("/", headers={"Idempotency-Key": "k", **getattr(caller, "headers", {})})
    request.user = AnonymousUser() if caller.user is None else caller.user
    request.session = SimpleNamespace(session_key=caller.session)

    async def auser() -> Any:  # the session's user, in whose place a middleware has put another
        return AnonymousUser()

    request.auser = auser
    response = view(request)
    response = asyncio.run(response) if asyncio.iscoroutine(response) else response
    return 0 if response.headers.get("Idempotency-Replayed") else 1


STRANGERS = [
    (Caller(user=user(1)), Caller(user=user(2))),
    (Caller(user=user(1)), Caller(user=user(1, "Customer"))),
    (Caller(user=SimpleLazyObject(lambda: user(1))), Caller(user=SimpleLazyObject(lambda: user(2)))),
    (Caller(user=user(1)), Caller()),
    (Caller(session="a"), Caller(session="b")),
    (Caller(session="a"), Caller()),
    (Caller(headers={"Authorization": "Token a"}), Caller(headers={"Authorization": "Token b"})),
]
JWT = [{"Authorization": "JWT a"}, {"Authorization": "JWT b"}]
SAME = [
    (Caller(user=user(1), session="a"), Caller(user=user(1), session="after a new login")),
    (
        Caller(user=user(1), headers={"Authorization": "JWT a"}),
        Caller(user=user(1), headers={"Authorization": "JWT b"}),
    ),
    (Caller(user=user(1)), Caller(user=SimpleLazyObject(lambda: user(1)))),
    (Caller(session="a"), Caller(session="a")),
]


@pytest.mark.parametrize("view", [mine, amine])
@pytest.mark.parametrize(("first", "second"), STRANGERS)
def test_nobody_else_gets_the_answer(rf: Any, view: Callable[..., Any], first: Caller, second: Caller) -> None:
    assert call(rf, view, first) == 1
    with pytest.raises(KeyReused):
        call(rf, view, second)
    assert call(rf, view, first) == 0


@pytest.mark.parametrize("view", [mine, amine])
@pytest.mark.parametrize(("first", "second"), SAME)
def test_one_user_gets_it_from_another_place(rf: Any, view: Callable[..., Any], first: Caller, second: Caller) -> None:
    assert (call(rf, view, first), call(rf, view, second)) == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_a_user_is_asked_for_where_the_database_may_be(rf: Any) -> None:
    lazy = Caller(user=SimpleLazyObject(asks_the_database))
    assert (call(rf, amine, lazy), call(rf, amine, lazy)) == (1, 0)


class Shop:
    """A Flask app whose clients keep their cookies."""

    def __init__(self) -> None:
        self.app = app = flask.Flask("shop")
        app.secret_key = "not for the client"
        DistLock(app)
        app.add_url_rule("/enter/<name>/<value>", view_func=self.enter)
        app.add_url_rule("/pay", view_func=once(key=KEY, keep=60)(self.pay), methods=["POST"])

    def enter(self, name: str, value: str) -> str:
        flask.session[name] = value
        return "in"

    def pay(self) -> str:
        flask.flash("Thank you")
        flask.session["orders"] = next(runs)
        return f"paid {next(runs)}"

    def client(self, *entered: str) -> Callable[..., tuple[int, str]]:
        client = self.app.test_client()
        for each in entered:
            client.get(f"/enter/{each}")

        def pay(**headers: str) -> tuple[int, str]:
            answer = client.post("/pay", headers={"Idempotency-Key": "k", **headers})
            return answer.status_code, answer.text

        return pay


@pytest.mark.parametrize("name", ["_user_id", "user_id"])
def test_flask_knows_a_user_by_the_session(name: str) -> None:
    shop = Shop()
    first = shop.client(f"{name}/1")
    _, receipt = first()
    assert first() == (200, receipt), "though the view has written into the session"
    assert shop.client("cart/9", f"{name}/1")(Authorization="Token new") == (200, receipt)
    for stranger in (shop.client(f"{name}/2"), shop.client(), shop.client("cart/9")):
        assert stranger()[0] == 422


def test_flask_knows_who_is_not_logged_in_by_what_the_session_says() -> None:
    shop = Shop()
    first = shop.client("cart/9")
    assert first()[0] == 200
    assert shop.client("cart/8")()[0] == 422
    assert shop.client()()[0] == 422


class NamedSession(dict[str, Any], SessionMixin):
    sid = ""


class OnTheServer(SessionInterface):
    """As Flask-Session: who sends no name of a saved session has another one, new for each request."""

    def __init__(self) -> None:
        self.saved: dict[str, dict[str, Any]] = {}

    def open_session(self, app: flask.Flask, request: flask.Request) -> NamedSession:
        sent = request.cookies.get("session", "")
        session = NamedSession(self.saved.get(sent, {}))
        session.sid = sent if sent in self.saved else secrets.token_urlsafe()
        return session

    def save_session(self, app: flask.Flask, session: Any, response: flask.Response) -> None:
        if session:
            self.saved[session.sid] = dict(session)
            response.set_cookie("session", session.sid)


def test_flask_knows_who_is_not_logged_in_by_the_sessions_name_if_it_was_sent() -> None:
    """A program without cookies had another name at each retry, and never got its answer."""
    shop = Shop()
    shop.app.session_interface = OnTheServer()
    _, receipt = shop.client()()
    assert shop.client()() == shop.client()(Cookie="session=forgotten") == (200, receipt)
    visitor = shop.client("cart/9")
    assert visitor()[0] == 422
    first = visitor(**{"Idempotency-Key": "own"})
    assert visitor(**{"Idempotency-Key": "own"}) == first, "though the view has written into the session"
    assert shop.client("cart/9")(**{"Idempotency-Key": "own"})[0] == 422


def test_flask_login_knows_users_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    known = SimpleNamespace(get_id=lambda: flask.request.headers.get("X-User"))
    monkeypatch.setitem(sys.modules, "flask_login", SimpleNamespace(current_user=known))
    shop.app.login_manager = object()  # type: ignore[attr-defined]
    ann = shop.client()(**{"X-User": "ann"})
    assert shop.client()(**{"X-User": "ann"}) == ann
    assert shop.client()(**{"X-User": "bob"})[0] == 422
    assert shop.client()()[0] == 422


# What else a view may answer ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_template_is_rendered_once_and_kept(rf: Any, asynchronous: bool, settings: Any) -> None:
    settings.TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]

    def make(request: HttpRequest) -> TemplateResponse:
        return TemplateResponse(
            request,
            engines["django"].from_string("{% for n in numbers %}{{ n }},{% endfor %}"),
            {"numbers": iter("12")},
        )

    async def amake(request: HttpRequest) -> TemplateResponse:
        return make(request)

    view: Any = once(key=KEY, keep=60)(amake if asynchronous else make)

    def get() -> HttpResponse:
        response = view(rf.post("/", headers={"Idempotency-Key": "k"}))
        response = asyncio.run(response) if asyncio.iscoroutine(response) else response
        return response.render() if hasattr(response, "render") else response

    assert [get().content for _ in "123"] == [b"1,2,"] * 3


STREAMS: dict[str, Callable[..., Any]] = {
    "response": lambda request: StreamingHttpResponse([b"a", b"b"], status=201),
    "file": lambda request: FileResponse(BytesIO(b"ab"), status=201),
}
CHUNKS: dict[str, Callable[[], Any]] = {
    "response": lambda: flask.Response((each for each in "ab"), 201),
    "generator": lambda: ((each for each in "ab"), 201),
}
urlpatterns += [path(f"stream/{name}/", once(key=KEY, keep=60)(view)) for name, view in STREAMS.items()]


@pytest.mark.parametrize(
    ("site", "name"), [*(("django", name) for name in STREAMS), *(("flask", name) for name in CHUNKS)]
)
def test_a_streamed_answer_is_recorded_as_done(site: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    if site == "django":

        def post() -> tuple[int, bytes, Any]:
            response: Any = Client().post(f"/stream/{name}/", headers={"Idempotency-Key": "k"})
            body = b"".join(response.streaming_content) if response.streaming else response.content
            return response.status_code, body, response.headers
    else:
        app = flask.Flask("shop")
        DistLock(app)
        app.add_url_rule("/", "pay", once(key=KEY, keep=60)(CHUNKS[name]), methods=["POST"])

        def post() -> tuple[int, bytes, Any]:
            response = app.test_client().post("/", headers={"Idempotency-Key": "k"})
            return response.status_code, response.data, response.headers

    assert post()[:2] == (201, b"ab")
    status, body, headers = post()
    assert (status, body) == (201, b"This has been done. Its answer was not kept.\n")
    assert headers["Idempotency-Replayed"] == "true"
    assert any("without its answer: it is streamed" in line for line in caplog.messages)


class Download(StreamingHttpResponse):
    pass


def streams() -> Iterator[str]:
    return iter("ab")


def downloads(request: HttpRequest) -> Download:
    return Download()


def sends(request: HttpRequest) -> FileResponse:
    return FileResponse(BytesIO())


def shows(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def unknown(request: HttpRequest) -> Elsewhere:  # type: ignore[name-defined]  # noqa: F821
    return HttpResponse()


@pytest.mark.parametrize("view", [streams, downloads, sends])
def test_a_view_that_says_that_it_streams_is_refused_when_it_is_decorated(view: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="returns a stream"):
        once(key="x", keep=60)(view)


@pytest.mark.parametrize("view", [shows, unknown, lambda: None])
def test_every_other_annotation_says_nothing(view: Callable[..., Any]) -> None:
    once(key="x", keep=60)(view)


# REST framework -----------------------------------------------------------------------------------------------------


def from_data(request: Any) -> Response:
    """What it has read of the body, and a number that JSON has not."""
    return Response({"run": next(runs), "amount": request.data.get("amount"), "price": Decimal("1.5")}, status=201)


class Method(APIView):
    @method_decorator(once(key=KEY, keep=60))
    def post(self, request: Any) -> Response:
        return from_data(request)

    put = post


@method_decorator(once(key=KEY, keep=60), name="dispatch")
class Whole(APIView):
    def post(self, request: Any) -> Response:
        return from_data(request)

    put = post


class Orders(ViewSet):
    @once(key="order:{request.data[once]}", keep=60)
    def create(self, request: Any) -> Response:
        return from_data(request)


REST = {
    "function": api_view(["POST", "PUT"])(once(key=KEY, keep=60)(from_data)),
    "above": once(key=KEY, keep=60)(api_view(["POST", "PUT"])(from_data)),
    "method": Method.as_view(),
    "dispatch": Whole.as_view(),
    "action": Orders.as_view({"post": "create", "put": "create"}),
}
urlpatterns += [path(f"rest/{name}/", view) for name, view in REST.items()]


@pytest.mark.parametrize("name", REST)
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("media_type", ["application/json", "multipart/form-data"])
def test_rest_frameworks_views_read_the_body_and_render_the_answer(name: str, method: str, media_type: str) -> None:
    def send(amount: int) -> Any:
        said: Any = {"amount": amount, "once": "k"}
        body = json.dumps(said).encode() if media_type == "application/json" else encode_multipart(BOUNDARY, said)
        content_type = media_type if media_type == "application/json" else MULTIPART_CONTENT
        headers = {"Idempotency-Key": "k", "Accept": "application/json"}
        return Client().generic(method, f"/rest/{name}/", body, content_type, headers=headers)

    first, again, other = send(1), send(1), send(2)
    assert (first.status_code, first.json()["price"]) == (201, 1.5)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert (first.headers.get("Idempotency-Replayed"), again.headers["Idempotency-Replayed"]) == (None, "true")
    assert other.status_code == 422
    assert send(1).content == first.content


@api_view(["POST"])
@once(key=KEY, keep=60)
def empty(request: Any) -> Response:
    return Response(status=204)


def test_what_rest_framework_answers_without_data(rf: Any) -> None:
    answers = [view(rf.post("/", headers={"Idempotency-Key": "k"})).render() for view in (empty, empty)]
    assert [answer.status_code for answer in answers] == [204, 204]
    assert [answer.content for answer in answers] == [b"", b""]
    assert "Idempotency-Replayed" in answers[1].headers


class AsBytes(BaseRenderer):
    media_type = "application/pdf"
    charset = None

    def render(self, data: Any, *args: Any) -> Any:
        return data


#: Data that the view answers, the renderer that makes its page, and the page; whether that can be made again.
PAGES: dict[str, tuple[Any, type[BaseRenderer], bytes, bool]] = {
    "template": ({"order": 7}, TemplateHTMLRenderer, b"order 7", True),
    "no JSON": ({"order": Template("7")}, TemplateHTMLRenderer, b"order &lt;Template", False),
    "bytes": (b"%PDF", AsBytes, b"%PDF", True),
    "no text": (b"\xff", AsBytes, b"\xff", True),
}


@pytest.mark.parametrize("case", PAGES)
def test_what_rest_framework_renders_as_no_json(case: str, rf: Any, settings: Any, tmp_path: Path) -> None:
    """It is done: a second request must not do it again, because its answer cannot be made again."""
    (tmp_path / "order.html").write_text("order {{ order }}")
    settings.TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [tmp_path]}]
    data, renderer, page, is_kept = PAGES[case]

    @api_view(["POST"])
    @renderer_classes([renderer])
    @once(key=KEY, keep=60)
    def order(request: Any) -> Response:
        return Response(data, status=201, template_name="order.html")

    def send() -> Any:
        response = order(rf.post("/", headers={"Idempotency-Key": "k"}))
        return response.render() if hasattr(response, "render") else response

    first, again = send(), send()
    assert (first.status_code, first.content[: len(page)]) == (201, page)
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (201, "true")
    assert again.content == (first.content if is_kept else b"This has been done. Its answer was not kept.\n")


# Clicks at the same moment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait", "answers"), [(0, {b"paid 1", None}), (20, {b"paid 1"})])
def test_two_clicks_at_the_same_moment(wait: int, answers: set[bytes | None], rf: Any) -> None:
    """In flight it is refused, or has a place in the queue; who has waited gets the first one's answer."""
    both_are_here, done = threading.Barrier(2), itertools.count(1)

    @once(key=KEY, keep=60, wait=wait)
    def pay(request: HttpRequest) -> HttpResponse:
        if wait:
            eventually(lambda: list_all(registry()).rows[0].lock.waiters, "the other one waits")
        else:
            both_are_here.wait(20)  # for the one that is refused
        return HttpResponse(f"paid {next(done)}")

    def click(_: int) -> bytes | None:
        try:
            return pay(rf.post("/", headers={"Idempotency-Key": "k"})).content
        except LockBusy:
            both_are_here.wait(20)
            return None

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(click, range(2))) == answers


# Forms --------------------------------------------------------------------------------------------------------------

HIDDEN = re.compile(r'<input type="hidden" name="once" value="([\w-]{20,})">')


def test_each_rendered_form_is_a_request_of_its_own() -> None:
    app = flask.Flask("shop")
    DistLock(app)
    with app.app_context():
        in_flask = [flask.render_template_string("<form>{{ once() }}</form>") for _ in "12"]
    template = Template("{% load distlock %}<form>{% once %}</form>")
    in_django = [template.render(Context()) for _ in "12"]
    found = [HIDDEN.search(form) for form in (*in_flask, *in_django)]
    assert len({each[1] for each in found if each is not None}) == 4


@pytest.mark.parametrize("site", ["django", "flask"])
def test_a_form_without_its_field_is_a_400_that_names_it(site: str) -> None:
    if site == "django":
        post: Any = Client().post
    else:
        app = flask.Flask("shop")
        DistLock(app)
        app.add_url_rule("/form/", view_func=flask_form, methods=["GET", "POST"])
        post = app.test_client().post
    headers = {"Accept": "text/html"}
    first, again, missing, void = (
        post("/form/", data=data, headers=headers) for data in ({"once": "a"}, {"once": "a"}, {}, {"once": ""})
    )
    assert text_of(first) == text_of(again)
    for answer in (missing, void):
        assert answer.status_code == 400
        assert "The request lacks the field once." in text_of(answer)


def text_of(answer: Any) -> str:
    return str(answer.text)


@once(key="form:{request.POST[once]}", keep=60, methods=("POST",))
def django_form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"done {next(runs)}")


@once(key="form:{request.form[once]}", keep=60, methods=("POST",))
def flask_form() -> str:
    return f"done {next(runs)}"


urlpatterns += [path("form/", django_form)]


# Plain functions in a request ---------------------------------------------------------------------------------------


@once(key="charge:{order}", keep=60, result=True)
def charge(order: int) -> dict[str, int]:
    return {"charge": next(runs)}


def test_a_function_that_a_view_calls_has_no_request() -> None:
    app = flask.Flask("shop")
    DistLock(app)
    app.add_url_rule("/<int:n>", "pay", lambda n: charge(7), methods=["POST"])
    answers = [app.test_client().post(f"/{n}").json for n in (1, 2)]
    assert answers[0] == answers[1] == charge(7)


def in_flask(*views: Callable[..., Any], config: Any = None) -> Callable[[str], Any]:
    app = flask.Flask("shop")
    app.config.update(config or {"PROPAGATE_EXCEPTIONS": False})
    DistLock(app)
    for view in views:
        app.add_url_rule(f"/{view.__name__}", view_func=view, methods=["POST", "GET"])
    return lambda name: app.test_client().post(f"/{name}", headers={"Idempotency-Key": "k"})


def hidden() -> Any:
    """As a decorator without ``functools.wraps`` leaves it."""
    return once(key="hidden", keep=60)(lambda: "paid")()


#: What a helper returns, which a view calls and goes on with. Of a view, some would be a status, or headers.
RETURNED: dict[str, Callable[[], Any]] = {
    "row": SimpleNamespace,
    "dict": lambda: {"id": 7},
    "a status": lambda: ("ch_1", 9900),
    "headers": lambda: (True, {"id": 7}),
    "a flag": lambda: ("a", True),
    "Ninja's status": lambda: (402, "declined"),
}
NOT_PLAIN = {"row"}
HELPERS = {"a key of the request": KEY, "a key of its own": "helper"}


def calls_helper(charge: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    """A view of a factory: its helper is in its closure, where a decorator has its view."""

    def another_view(*request: Any) -> Any:
        seen.append(charge(*request))
        return HttpResponse("no", status=500) if request else ("no", 500)

    return another_view


def named_charge(site: str, work: Callable[[], Any]) -> Callable[..., Any]:
    def charge(request: HttpRequest) -> Any:
        return work()

    work.__name__ = charge.__name__
    return work if site == "flask" else charge


def in_django(view: Callable[..., Any], settings: Any) -> Callable[[], Any]:
    settings.ROOT_URLCONF = (path("view", view),)
    return lambda: Client(raise_request_exception=False).post("/view", headers={"Idempotency-Key": "k"})


def in_ninja(view: Callable[..., Any], settings: Any) -> Callable[[], Any]:
    api = ninja.NinjaAPI(urls_namespace=secrets.token_hex(), docs_url=None)

    def operation(request: HttpRequest) -> Any:
        return view(request)

    api.post("/view")(operation)
    settings.ROOT_URLCONF = (path("", api.urls),)
    return lambda: Client(raise_request_exception=False).post("/view", headers={"Idempotency-Key": "k"})


def in_one_flask(view: Callable[..., Any], settings: Any) -> Callable[[], Any]:
    post = in_flask(view)
    return lambda: post(view.__name__)


SITES: dict[str, Callable[[Callable[..., Any], Any], Callable[[], Any]]] = {
    "django": in_django,
    "ninja": in_ninja,
    "flask": in_one_flask,
}


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("key", HELPERS)
@pytest.mark.parametrize("keeps_result", [False, True])
@pytest.mark.parametrize("case", RETURNED)
def test_a_helper_that_a_view_calls_is_a_function(
    site: str, key: str, keeps_result: bool, case: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its value was answered in the view's place, taken for a status, or a response was given to the view's code."""
    done, seen = [], list[Any]()

    def work() -> Any:
        done.append(RETURNED[case]())
        return done[-1]

    charge = once(key=HELPERS[key], keep=60, result=keeps_result)(named_charge(site, work))
    post = SITES[site](calls_helper(charge, seen), settings)
    answers = [post(), post()]
    assert len(done) == 1
    assert seen == [done[0], done[0] if keeps_result and case not in NOT_PLAIN else None]
    assert [answer.status_code for answer in answers] == [500, 500], "the view went on"
    assert "Idempotency-Replayed" not in answers[1].headers
    warned = [line for line in caplog.messages if "is not its view. It returned a" in line]
    assert bool(warned) is not keeps_result


def test_a_response_that_a_helper_returns_in_django_is_given_again(settings: Any) -> None:
    """The caller gets one each time, as a generic view from its ``create``. Only the view's own answer is marked."""

    @once(key=KEY, keep=60)
    def create(request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"run {next(runs)}")

    class Orders(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            created = create(request)
            return created if "whole" in request.path else HttpResponse(created.content, status=400)

    settings.ROOT_URLCONF = tuple(path(name, Orders.as_view()) for name in ("whole", "part"))
    for name, status, is_marked in (("whole", 200, True), ("part", 400, False)):
        first, second = (Client().post(f"/{name}", headers={"Idempotency-Key": name}) for _ in "12")
        assert (first.status_code, second.status_code, second.content) == (status, status, first.content)
        assert ("Idempotency-Replayed" in second.headers) is is_marked


def without_wraps(view: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        return view(*args)

    return guarded


def test_a_helper_that_is_defined_beside_its_view_is_a_function() -> None:
    """As in a factory of apps: the name that it was given there is not its own."""
    seen = []
    charge = once(key=KEY, keep=60)(lambda: ("ch_1", 9900))

    def pay() -> str:
        seen.append(charge())
        return "paid"

    post = in_flask(pay)
    assert [post("pay").text, post("pay").text] == ["paid", "paid"]
    assert seen == [("ch_1", 9900), None]


@pytest.mark.parametrize(
    ("said", "is_done"),
    [
        (lambda: ninja.Status(402, "declined"), False),
        (lambda: (402, "declined"), False),
        (lambda: ninja.Status(304, None), False),
        (lambda: ninja.Status(201, "paid"), True),
        (lambda: (201, "paid"), True),
        (lambda: ["402", "paid"], True),
    ],
)
@pytest.mark.parametrize("options", [{}, {"until": "commit"}])
@pytest.mark.filterwarnings("ignore:Returning tuple:DeprecationWarning")
@pytest.mark.django_db(transaction=True)
def test_the_status_that_a_ninja_operation_says_decides(
    said: Callable[[], Any], is_done: bool, options: Any, settings: Any
) -> None:
    """A payment that was declined was answered for as long as the record was kept, and committed."""
    api, done = ninja.NinjaAPI(urls_namespace=secrets.token_hex(), docs_url=None), []

    def pay(request: HttpRequest) -> Any:
        done.append(1)
        return said()

    api.post("/pay", response=dict.fromkeys((200, 201, 304, 402), Any))(once(key=KEY, keep=60, **options)(pay))
    settings.ROOT_URLCONF = (path("", api.urls),)
    for _ in "12":
        Client().post("/pay", headers={"Idempotency-Key": "k"})
    assert len(done) == (1 if is_done else 2)


@once(key=KEY, keep=60)
def below(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"run {next(runs)}")


@once(key=KEY, keep=60)
def below_in_ninja(request: HttpRequest) -> Any:
    return {"run": next(runs)}


@once(key=KEY, keep=60)
def below_in_flask() -> Any:
    return {"run": next(runs)}, 201


@pytest.mark.parametrize(("site", "view"), [("django", below), ("flask", below_in_flask), ("ninja", below_in_ninja)])
def test_a_view_that_a_decorator_hides_is_the_view(site: str, view: Callable[..., Any], settings: Any) -> None:
    post = SITES[site](without_wraps(without_wraps(view)), settings)
    first, second = post(), post()
    assert (second.status_code, text_of(second)) == (first.status_code, text_of(first))
    assert second.headers["Idempotency-Replayed"] == "true"


def test_what_is_lost_of_a_function_in_a_request_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    post = in_flask(hidden)
    assert post("hidden").status_code == 200
    assert [line for line in caplog.messages if "is not its view. It returned a str" in line]
    assert post("hidden").status_code == 500


@pytest.mark.parametrize("trapped", [False, True])
def test_a_value_that_was_not_kept_is_told_past_all_that_would_take_it_apart(trapped: bool) -> None:
    """``marshal_with`` made of the line what the view's schema says: ``{"paid": 0}``."""
    pay = once(key="pay", keep=60)(lambda: {"paid": {7}})

    def marshalled() -> Any:
        return str(pay())

    pay.__name__ = marshalled.__name__
    marshalled.__wrapped__ = pay  # type: ignore[attr-defined]
    post = in_flask(marshalled, config={"TRAP_HTTP_EXCEPTIONS": trapped, "PROPAGATE_EXCEPTIONS": False})
    first, second = post("marshalled"), post("marshalled")
    assert (first.text, second.text) == ("{'paid': {7}}", "This has been done. Its answer was not kept.\n")
    assert second.status_code == 200


def fails() -> Any:
    return flask.abort(404) if flask.request.args else NotFound()


@pytest.mark.parametrize("decorate", [once(key="fails", keep=60), distributed_lockable(key="fails", hold_at_least=60)])
def test_an_error_that_a_view_returns_is_no_success(decorate: Any) -> None:
    """Flask takes it as if it was raised. It was kept, and held the lock."""
    post = in_flask(decorate(fails))
    answers = [post("fails") for _ in "12"]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert "Idempotency-Replayed" not in answers[1].headers


def test_a_304_is_no_answer_for_others(rf: Any) -> None:
    """``@condition`` made it for one who had the page; the next one, who had not, got a 304, too."""

    @once(key="page", keep=60)
    @condition(etag_func=lambda request: '"1"')
    def page(request: HttpRequest) -> HttpResponse:
        return HttpResponse("the page")

    has, has_not = page(rf.get("/", headers={"If-None-Match": '"1"'})), page(rf.get("/"))
    assert (has.status_code, has_not.status_code, has_not.content) == (304, 200, b"the page")


def test_a_304_that_counts_as_a_success_is_not_kept(rf: Any) -> None:
    view = once(key="page", keep=60, success=lambda response: True)(lambda request: HttpResponse(status=304))
    first, second = view(rf.get("/")), view(rf.get("/"))
    assert (first.status_code, second.status_code) == (304, 200)
    assert second.content == b"This has been done. Its answer was not kept.\n"


@once(key="price:{request.headers[Idempotency-Key]}", keep=60)
def price(request: HttpRequest) -> Any:
    return PRICES.pop()


PRICES: list[Any] = []


@pytest.mark.parametrize("value", [7, None, False, [], ("paid", 201)])
def test_a_value_is_answered_as_a_value(rf: Any, value: Any) -> None:
    """As Ninja's operations return it."""
    PRICES[:] = [value]
    request = rf.post("/", headers={"Idempotency-Key": "k"})
    assert (price(request), price(request)) == (value, value)


@once(key="price:{request.headers[Idempotency-Key]}", keep=60, result=True)
def stored_price(request: HttpRequest) -> Any:
    return PRICES.pop()


@pytest.mark.parametrize(("value", "second"), [(7, 7), (("paid", 201), ("paid", 201)), (object(), None)])
def test_with_result_a_second_call_gets_the_value_or_none(
    rf: Any, value: Any, second: Any, caplog: pytest.LogCaptureFixture
) -> None:
    PRICES[:] = [value]
    request = rf.post("/", headers={"Idempotency-Key": "k"})
    assert (stored_price(request), stored_price(request)) == (value, second)
    assert bool([line for line in caplog.messages if "without its result" in line]) is (second is None)


def test_of_a_value_that_is_not_kept_it_is_said(rf: Any, caplog: pytest.LogCaptureFixture) -> None:
    PRICES[:] = [object()]
    request = rf.post("/", headers={"Idempotency-Key": "k"})
    price(request)
    assert [line for line in caplog.messages if "without its answer: it has builtins.object" in line]
    assert price(request).content == b"This has been done. Its answer was not kept.\n"


@pytest.mark.parametrize(("form", "times"), [(1, 2), (2, 1)])
def test_a_value_is_rendered_a_second_time_only_for_the_version_before(
    form: int, times: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps a value as the response that is made of it, which costs as much as the response."""
    store = {"default": {"BACKEND": "memory", "FORMAT": form}}
    rendered: list[str] = []

    class Counting(DefaultJSONProvider):
        def dumps(self, obj: Any, **kwargs: Any) -> str:
            rendered.append("flask")
            return super().dumps(obj, **kwargs)

    app = flask.Flask("shop")
    app.json = Counting(app)
    app.config["DISTLOCK"] = store
    DistLock(app)

    @app.post("/")
    @once(key="pay", keep=60)
    def pay() -> dict[str, int]:
        return {"paid": 7}

    assert app.test_client().post("/").json == {"paid": 7}

    def render(self: Any, *args: Any, **kwargs: Any) -> bytes:
        rendered.append("rest")
        return render_first(self, *args, **kwargs)

    render_first = JSONRenderer.render
    monkeypatch.setattr(JSONRenderer, "render", render)
    settings.DISTLOCK = store

    @api_view(["POST"])
    @once(key="pay", keep=60)
    def view(request: Any) -> Response:
        return Response({})

    settings.ROOT_URLCONF = (path("", view),)
    assert Client().post("/", headers={"Accept": "application/json"}).json() == {}
    assert {name: rendered.count(name) for name in rendered} == {"flask": times, "rest": times}
