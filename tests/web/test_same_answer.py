"""What the first client got, the second gets: every answer that a view may give, in every framework, under ``once``.

One table. A row is an answer, a site is a framework with what it puts around a view. For each of them: the first
answer is what it is without ``once``; the work is done once; and the second answer is the first one, byte for byte, or
the line which says that it was not kept. Nothing else is allowed.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import json
import re
import secrets
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.sax.saxutils import escape
from zoneinfo import ZoneInfo

import apiflask
import fastapi
import fastapi.responses
import flask
import flask_restful
import flask_restful.fields
import flask_restx
import flask_restx.fields
import flask_smorest
import marshmallow
import msgpack  # type: ignore[import-untyped]
import ninja
import pytest
import starlette.applications
import starlette.responses
import starlette.routing
from django import http
from django.contrib.contenttypes.models import ContentType
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext, gettext_lazy
from django.views import View
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.gzip import gzip_page
from flask.views import MethodView
from markupsafe import Markup
from rest_framework import renderers
from rest_framework.decorators import api_view, renderer_classes
from rest_framework.exceptions import ErrorDetail
from rest_framework.response import Response
from rest_framework.utils.serializer_helpers import ReturnDict
from rest_framework.views import APIView
from werkzeug.datastructures import Headers, MultiDict, WWWAuthenticate
from werkzeug.exceptions import NotFound, Unauthorized
from werkzeug.test import Client as WsgiClient

from distlock_web import distributed_lockable, escape_key, once
from distlock_web.flask import DistLock
from distlock_web.starlette import DistLock as StarletteDistLock
from distlock_web.web.kept_answers import MAX_KEPT
from tests.support.asgi_clients import client_of

NOT_KEPT = b"This has been done. Its answer was not kept.\n"
#: What an answer must not lose, if its view has said it. (The others are the second request's own.)
KEPT = (
    "Content-Type", "Content-Language", "Content-Range", "Content-Encoding", "Content-Disposition", "Location", "Link",
    "Vary", "ETag", "Cache-Control", "WWW-Authenticate", "X-Accel-Redirect", "X-Sendfile", "X-Frame-Options",
    "Content-Security-Policy", "Accept-Ranges",
)  # fmt: skip


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, list[str]]

    def says_not_kept(self) -> bool:
        headers = [self.headers.get(name) for name in ("content-type", "cache-control", "etag", "content-range")]
        return self.body == NOT_KEPT and headers == [["text/plain; charset=utf-8"], ["no-store"], None, None]

    def seen(self) -> tuple[Any, ...]:
        return self.status, self.body, {name: self.headers.get(name.lower()) for name in KEPT}


def reply(status: int, body: bytes, headers: Any) -> Reply:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value)
    return Reply(status, body, found)


class Row(NamedTuple):
    """An answer: ``make`` makes it, where the view runs. ``kept``: whether it is given again, or the line."""

    make: Callable[..., Any]
    kept: bool = True
    headers: Mapping[str, str] = {}
    #: What the second client sends in place of that.
    later: Mapping[str, str] | None = None
    #: Above the view and below ``once``.
    below: Callable[[Any], Any] | None = None


class Status(enum.StrEnum):
    PAID = "paid"


class Money(NamedTuple):
    amount: int


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(20_000):
        found = [found]
    return found


def itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


#: Values: what an API renders, and Flask makes a response of. True: one that reads back as it was.
VALUES: dict[str, Row] = {
    "dict": Row(lambda: {"paid": 7, "margin": 3}),
    "list": Row(lambda: [{"paid": 7}, {"paid": None}]),
    "text": Row(lambda: "paid €"),
    "empty": Row(dict),
    "none": Row(lambda: None),
    "number": Row(lambda: 7),
    "false": Row(lambda: False),
    "float": Row(lambda: 0.1),
    "Decimal": Row(lambda: {"paid": 7, "total": Decimal("9.90")}),
    "datetime": Row(lambda: {"paid": 7, "at": datetime(2026, 11, 23, 12, 30, tzinfo=UTC)}),
    "naive": Row(lambda: {"paid": 7, "at": datetime(2026, 11, 23, 12, 30)}),
    "zone": Row(
        lambda: {"paid": 7, "at": datetime(2026, 11, 23, 12, 30, tzinfo=ZoneInfo("Europe/Berlin"))}, kept=False
    ),
    "date": Row(lambda: {"paid": 7, "on": date(2026, 11, 23), "at": time(12, 30)}),
    "uuid": Row(lambda: {"paid": 7, "id": uuid.UUID(int=7)}),
    "tuple inside": Row(lambda: {"paid": 7, "pair": (1, 2)}),
    "number as key": Row(lambda: {7: "paid"}),
    "our own tag": Row(lambda: {"": ["Decimal", "1"]}),
    "unpaired": Row(lambda: {"paid": 7, "text": "\ud800"}),
    "MultiDict": Row(lambda: MultiDict([("paid", "7"), ("paid", "8")]), kept=False),
    "named tuple": Row(lambda: {"paid": Money(7)}, kept=False),
    "enum": Row(lambda: {"paid": Status.PAID}, kept=False),
    "NaN": Row(lambda: {"paid": float("nan")}, kept=False),
    "safe": Row(lambda: {"paid": 7, "html": mark_safe("<b>")}, kept=False),
    "markup": Row(lambda: {"paid": 7, "html": Markup("<b>")}, kept=False),
    "lazy": Row(lambda: {"paid": 7, "word": gettext_lazy("Yes")}, kept=False),
    "set": Row(lambda: {"paid": {7}}, kept=False),
    "generator inside": Row(lambda: {"paid": 7, "rows": (n for n in range(3))}, kept=False),
    "object": Row(lambda: SimpleNamespace(paid=7, margin=3), kept=False),
    "model": Row(lambda: ContentType(pk=7, app_label="shop", model="order"), kept=False),
    "large": Row(lambda: {"paid": 7, "text": "x" * MAX_KEPT}, kept=False),
    "deep": Row(deep, kept=False),
    "itself": Row(itself, kept=False),
}

# Django: plain ------------------------------------------------------------------------------------------------------


def headed(body: Any = b"paid", status: int = 200, **headers: str) -> Callable[..., HttpResponse]:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda *request: HttpResponse(body, status=status, headers=said)


def bare(request: Any) -> HttpResponse:
    response = HttpResponse(b"paid", status=201)
    del response["Content-Type"]
    return response


def with_cookie(request: Any) -> HttpResponse:
    response = HttpResponse("paid")
    response.set_cookie("session", "stolen")
    return response


def template(text: str) -> Callable[..., TemplateResponse]:
    return lambda request: TemplateResponse(request, engines["django"].from_string(text), {"numbers": iter("12")})


def replaced(request: Any) -> TemplateResponse:
    """Another response is put in its place when it has been rendered."""
    response = template("{% for n in numbers %}{{ n }}{% endfor %}")(request)
    response.add_post_render_callback(lambda rendered: HttpResponse(b"<" + rendered.content + b">", status=201))
    return response


PAGE = "<script nonce='{}'>thanks()</script>"
ALL_DJANGO: dict[str, Row] = {
    "text": Row(headed("bezahlt für €", 201, Location="/orders/7", Link="</a>")),
    "bytes": Row(headed(b"%PDF\xff\x00", Content_Type="application/pdf", Content_Disposition="attachment")),
    "JSON": Row(lambda request: JsonResponse({"paid": 7}, status=201)),
    "redirect": Row(lambda request: HttpResponseRedirect("/thanks/")),
    "204": Row(headed(b"", 204)),
    "206": Row(headed(b"ab", 206, Content_Range="bytes 0-1/9", Accept_Ranges="bytes")),
    "401": Row(headed(b"", 401, WWW_Authenticate="Basic")),
    "no type": Row(bare),
    "cookie": Row(with_cookie),
    "own policy": Row(headed(PAGE.format("a"), Content_Security_Policy="script-src 'nonce-a'")),
    "nonce": Row(headed(PAGE.format("a")), kept=False),
    "X-Accel-Redirect": Row(headed(b"", X_Accel_Redirect="/files/7.pdf", Content_Type="application/pdf")),
    "large": Row(headed(b"x" * (MAX_KEPT + 1), ETag='"x"', Cache_Control="public, max-age=60"), kept=False),
    "large 206": Row(headed(b"x" * (MAX_KEPT + 1), 206, Content_Range="bytes 0-1/9"), kept=False),
    "large 304": Row(headed(b"", 304, ETag='"x"'), kept=False),
    "stream": Row(lambda request: StreamingHttpResponse([b"a", b"b"], status=201), kept=False),
    "file": Row(lambda request: FileResponse(BytesIO(b"ab"), status=201), kept=False),
    "template": Row(template("{% for n in numbers %}{{ n }}{% endfor %}")),
    "replaced": Row(replaced),
    "language": Row(
        lambda request: HttpResponse(gettext("Yes")), headers={"Accept-Language": "de"}, later={"Accept-Language": "en"}
    ),
    "language of a template": Row(
        template("{% load i18n %}{% translate 'Yes' %}"),
        headers={"Accept-Language": "de"},
        later={"Accept-Language": "en"},
    ),
    "gzip": Row(headed(b"paid " * 100), headers={"Accept-Encoding": "gzip"}, below=gzip_page),
    "gzip of a template": Row(template("paid " * 100), headers={"Accept-Encoding": "gzip"}, below=gzip_page),
    "frames": Row(headed(), below=xframe_options_exempt),
}  # fmt: skip


#: ``send("text", headers)``, to the view of this row.
Send = Callable[[str, Mapping[str, str]], Reply]
#: Puts what is above a view by the name of its row, on the view.
Guard = Callable[[str], Callable[[Any], Any]]
#: Makes a site of these rows, under a guard.
Site = Callable[[Mapping[str, Row], Guard], Send]


def check(site: Site, rows: Mapping[str, Row], *, takes_apart: Callable[[str], bool] = lambda name: False) -> None:
    """The three sentences at the top of this file, of each row.

    ``takes_apart``: what is above the view makes its own of this answer, whether it is the first or the line.
    """
    runs: Counter[str] = Counter()

    def counted(name: str) -> Row:
        def make(*args: Any) -> Any:
            runs[name] += 1
            return rows[name].make(*args)

        return rows[name]._replace(make=make)

    def guard(name: str) -> Any:
        return once(key=escape_key(name), keep=60, success=lambda response: True)

    views = {name: counted(name) for name in rows}
    plainly, send = site(views, lambda name: lambda view: view), site(views, guard)
    wrong = {}
    for name, row in rows.items():
        later = row.headers if row.later is None else row.later
        plain = plainly(name, row.headers)
        first, second, third = send(name, row.headers), send(name, later), send(name, later)
        if without(first) != without(plain):
            wrong[name] = f"the first is {first}, and without once {plain}"
        elif runs[name] != 2:
            wrong[name] = f"the work was done {runs[name] - 1} times"
        elif second.seen() != first.seen() if row.kept or takes_apart(name) else not second.says_not_kept():
            wrong[name] = f"the first is {first}, the second {second}"
        elif {"set-cookie", "x-debug"} & second.headers.keys():
            wrong[name] = f"the second has what nobody has allowed: {second}"
        elif third.seen() != second.seen() or second.headers.get("idempotency-replayed") != ["true"]:
            wrong[name] = f"the second is {second}, the third {third}"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def without(answer: Reply) -> Reply:
    """Without what two requests never have in common. Django pads what it compresses, each time otherwise."""
    of_request = {"req-id"} | ({"content-length"} if "content-encoding" in answer.headers else set())
    body = b"" if "content-encoding" in answer.headers else answer.body
    return Reply(answer.status, body, {name: said for name, said in answer.headers.items() if name not in of_request})


@pytest.fixture(autouse=True)
def project(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "order.html").write_text("{{ paid }} {{ total }} {{ at|date:'H:i e' }} {{ html }} {{ pair.0 }}")
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    settings.LANGUAGE_CODE = "en"
    settings.MIDDLEWARE = [
        "distlock_web.django.middleware.RequestIDMiddleware",
        "django.middleware.locale.LocaleMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ]
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]


def of_django(views: Mapping[str, Any], client: Any = Client) -> Send:
    numbers = {name: number for number, name in enumerate(views)}
    urls = tuple(path(f"{numbers[name]}/", view) for name, view in views.items())

    def send(name: str, headers: Mapping[str, str]) -> Reply:
        with override_settings(ROOT_URLCONF=urls):
            made = client(raise_request_exception=False).post(f"/{numbers[name]}/", headers=headers)
            response = asyncio.run(made) if asyncio.iscoroutine(made) else made
            return reply(response.status_code, response.getvalue(), response.items())

    return send


def below(row: Row, view: Any) -> Any:
    return view if row.below is None else row.below(view)


def functions(rows: Mapping[str, Row], guard: Guard) -> Send:
    return of_django({name: guard(name)(below(row, row.make)) for name, row in rows.items()})


def coroutines(rows: Mapping[str, Row], guard: Guard) -> Send:
    views = {name: guard(name)(below(row, coroutine(row.make))) for name, row in rows.items()}
    return of_django(views, AsyncClient)


def methods(rows: Mapping[str, Row], guard: Guard) -> Send:
    return of_django({name: method(row, guard(name)).as_view() for name, row in rows.items()})


def method(row: Row, guard: Any) -> Any:
    return type("Pay", (View,), {"post": method_decorator(guard)(lambda self, request: below(row, row.make)(request))})


def coroutine(view: Callable[..., Any]) -> Callable[..., Any]:
    async def acall(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return acall


@pytest.mark.parametrize("site", [functions, coroutines, methods])
def test_in_django(site: Site) -> None:
    check(site, ALL_DJANGO)


class PolicyMiddleware:
    """A nonce as Django's middleware and django-csp's make it: when the page asks, and named after the view."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.csp_nonce = SimpleLazyObject(lambda: self.nonce(request))
        response = self.get_response(request)
        response["Content-Security-Policy"] = f"script-src 'nonce-{getattr(request, '_csp_nonce', None)}'"
        return response

    def nonce(self, request: Any) -> str:
        if not hasattr(request, "_csp_nonce"):
            request._csp_nonce = secrets.token_urlsafe()
        return str(request._csp_nonce)


def test_a_page_and_the_policy_that_lets_its_scripts_run(settings: Any) -> None:
    settings.MIDDLEWARE += [f"{__name__}.PolicyMiddleware"]
    view = once(key="pay", keep=60)(lambda request: HttpResponse(PAGE.format(request.csp_nonce)))
    send = of_django({"page": view})
    first, second = send("page", {}), send("page", {})
    assert second.seen() == first.seen()
    (policy,) = second.headers["content-security-policy"]
    assert PAGE.format(policy.removeprefix("script-src 'nonce-").rstrip("'")).encode() == second.body


# REST framework -----------------------------------------------------------------------------------------------------


def named(data: Any) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", repr(data))


class Xml(renderers.BaseRenderer):
    media_type, format = "application/xml", "xml"

    def render(self, data: Any, *args: Any) -> Any:
        return f"<paid>{escape(named(data))}</paid>"


class MessagePack(renderers.BaseRenderer):
    media_type, format, charset, render_style = "application/msgpack", "msgpack", None, "binary"

    def render(self, data: Any, *args: Any) -> Any:
        return msgpack.packb(data, default=named)


class Pdf(renderers.BaseRenderer):
    """Bytes, as they are."""

    media_type, format, charset, render_style = "application/pdf", "pdf", None, "binary"

    def render(self, data: Any, *args: Any) -> Any:
        return data


RENDERERS = {
    "JSON": renderers.JSONRenderer,
    "browsable": renderers.BrowsableAPIRenderer,
    "HTML": renderers.TemplateHTMLRenderer,
    "XML": Xml,
    "MessagePack": MessagePack,
}


def rest(renderer: Any) -> Site:
    """``once`` on the method."""

    def site(rows: Mapping[str, Row], guard: Guard) -> Send:
        return without_marks(of_django({name: resource(row, guard(name)).as_view() for name, row in rows.items()}))

    def resource(row: Row, guard: Any) -> Any:
        class Pay(APIView):
            renderer_classes = [renderer]  # noqa: RUF012
            authentication_classes = ()
            post = method_decorator(guard)(lambda self, request: row.make())

        return Pay

    return site


def above_rest(rows: Mapping[str, Row], guard: Guard) -> Send:
    """``once`` above ``@api_view``."""

    def view(row: Row) -> Any:
        def pay(request: Any) -> Any:
            return row.make()

        return api_view(["POST"])(renderer_classes([renderers.JSONRenderer])(pay))

    return of_django({name: guard(name)(view(row)) for name, row in rows.items()})


def without_marks(send: Send) -> Send:
    """The browsable page shows the response's headers, with what marks the second answer, and a new CSRF token."""
    mark = re.compile(rb"<b>Idempotency-Replayed:</b>.*?\n|\"csrfToken\": .*")

    def sent(name: str, headers: Mapping[str, str]) -> Reply:
        made = send(name, headers)
        return made._replace(body=mark.sub(b"", made.body))

    return sent


def with_data(row: Row) -> Row:
    data = row.make
    made = {"status": 201, "template_name": "order.html", "headers": {"Link": "</a>"}}
    return row._replace(make=lambda: Response(data(), **made))


DATA = {name: with_data(row) for name, row in VALUES.items()}
IN_JSON: dict[str, Row] = {
    "nothing": Row(lambda: Response(status=204)),
    "a type": Row(lambda: Response({"paid": 7}, content_type="application/vnd.shop+json")),
    "serializer": Row(lambda: Response(ReturnDict({"paid": 7}, serializer=object()))),
    "invalid": Row(lambda: Response({"pay": [ErrorDetail("no", code="no")]}, status=400)),
    "plain": Row(lambda: HttpResponse("paid", status=201)),
    "template": Row(lambda: Response({"paid": 7}, template_name=engines["django"].from_string("paid")), kept=False),
}


@pytest.mark.parametrize("renderer", RENDERERS)
def test_in_rest_framework(renderer: str) -> None:
    check(rest(RENDERERS[renderer]), DATA)


def test_what_else_rest_framework_answers() -> None:
    check(rest(renderers.JSONRenderer), IN_JSON)
    check(rest(renderers.StaticHTMLRenderer), {"static": Row(lambda: Response("<b>paid"))})
    check(rest(Pdf), {"PDF": Row(lambda: Response(b"%PDF\xff"))})
    error = {"exception": Row(lambda: Response({"detail": "no"}, status=404, exception=True))}
    check(rest(renderers.TemplateHTMLRenderer), error)


def test_above_rest_frameworks_view_it_keeps_what_is_sent() -> None:
    names = ("dict", "Decimal", "generator inside")
    check(above_rest, {name: DATA[name]._replace(kept=True) for name in names})


# Django Ninja -------------------------------------------------------------------------------------------------------

apis = itertools.count()
Answered = http.HttpResponse  # a name of the project's


class Paid(ninja.Schema):
    paid: Any = None


def ninja_site(*, asynchronous: bool = False, **options: Any) -> Site:
    def site(rows: Mapping[str, Row], guard: Guard) -> Send:
        urls = {name: api(row, guard(name)) for name, row in rows.items()}
        return of_django(urls, AsyncClient if asynchronous else Client)

    def api(row: Row, guard: Any) -> Any:
        def pay(request: HttpRequest) -> Any:
            return row.make()

        async def apay(request: HttpRequest) -> Any:
            return row.make()

        made = ninja.NinjaAPI(urls_namespace=f"shop {next(apis)}", docs_url=None)
        made.post("/", **options)(guard(apay if asynchronous else pay))
        return made.urls

    return site


NINJA = {
    "plain": ninja_site(),
    "async": ninja_site(asynchronous=True),
    "schema": ninja_site(response=Paid),
}


@pytest.mark.parametrize("site", NINJA)
def test_in_ninja(site: str) -> None:
    check(NINJA[site], VALUES)


def with_response(rows: Mapping[str, Row], guard: Guard) -> Send:
    """Of a response that it is given Ninja takes the headers. Each row is how its argument is annotated."""

    def api(annotation: str) -> Any:
        def pay(request: HttpRequest, response: Any) -> Any:
            response["Location"] = "/orders/7"
            return rows[annotation].make()

        pay.__annotations__["response"] = annotation
        made = ninja.NinjaAPI(urls_namespace=f"shop {next(apis)}", docs_url=None)
        made.post("/")(guard(annotation)(pay))
        return made.urls

    return of_django({annotation: api(annotation) for annotation in rows})


@pytest.mark.filterwarnings("ignore:Returning tuple:DeprecationWarning")
def test_what_else_ninja_answers() -> None:
    annotations = ("HttpResponse", "http.HttpResponse", "Answered")
    check(with_response, {annotation: Row(lambda: {"paid": 7}, kept=False) for annotation in annotations})
    check(ninja_site(response={201: Paid}), {"tuple": Row(lambda: (201, {"paid": 7, "margin": 3}))})
    check(ninja_site(response={201: Paid}), {"status": Row(lambda: ninja.Status(201, {"paid": 7, "margin": 3}))})
    check(ninja_site(response={201: Paid}), {"object": Row(lambda: ninja.Status(201, Paid(paid=7)), kept=False)})
    check(ninja_site(response={201: Paid}), {"tuple of an object": Row(lambda: (201, Paid(paid=7)), kept=False)})
    check(ninja_site(response={204: None}), {"nothing": Row(lambda: (204, None))})
    check(ninja_site(response=Paid), {"schema": Row(lambda: Paid(paid=7), kept=False)})
    check(ninja_site(), {"response": Row(lambda: HttpResponse("paid", status=201))})


# Flask --------------------------------------------------------------------------------------------------------------


class Out(marshmallow.Schema):
    """What the view's margin is hidden by."""

    paid = marshmallow.fields.Raw()


def xml(data: Any, code: int, headers: Any = None) -> Any:
    return flask.make_response(f"<paid>{data}</paid>", code, {**(headers or {}), "Content-Type": "application/xml"})


Views = Mapping[str, Any]


def add_plain(app: flask.Flask, views: Views) -> None:
    for name, pay in views.items():
        app.add_url_rule(f"/{name}", name, pay, methods=["POST"])


def add_smorest(*schema: Any) -> Callable[..., None]:
    def add(app: flask.Flask, views: Views) -> None:
        app.config.update(API_TITLE="shop", API_VERSION="1", OPENAPI_VERSION="3.0.2")
        blueprint = flask_smorest.Blueprint("shop", "shop")
        for name, pay in views.items():
            view = type(f"Pay{name}", (MethodView,), {"post": blueprint.response(201, *schema)(pay)})
            blueprint.route(f"/{name}")(view)
        flask_smorest.Api(app).register_blueprint(blueprint)

    return add


def add_output(schema: Any) -> Callable[..., None]:
    def add(app: Any, views: Views) -> None:
        for name, pay in views.items():
            app.post(f"/{name}", endpoint=name)(app.output(schema, 201)(pay))

    return add


def add_resource(library: Any, *, marshalled: bool = False, as_xml: bool = False) -> Callable[..., None]:
    def add(app: flask.Flask, views: Views) -> None:
        api = library.Api(app)
        if as_xml:
            api.representations = {}
            api.representation("application/xml")(xml)
        for name, pay in views.items():
            post = library.marshal_with({"paid": library.fields.Raw})(pay) if marshalled else pay
            api.add_resource(type(f"Pay{name}", (library.Resource,), {"post": post}), f"/{name}", endpoint=name)

    return add


FLASK: dict[str, tuple[Callable[..., None], Callable[[str], flask.Flask]]] = {
    "plain": (add_plain, flask.Flask),
    "smorest": (add_smorest(Out), flask.Flask),
    "smorest, no schema": (add_smorest(), flask.Flask),
    "APIFlask": (add_output(Out), apiflask.APIFlask),
}
for library in (flask_restful, flask_restx):
    for marshalled, as_xml in ((True, False), (False, False), (False, True)):
        how = ", marshalled" * marshalled + ", XML" * as_xml
        FLASK[library.__name__ + how] = (add_resource(library, marshalled=marshalled, as_xml=as_xml), flask.Flask)


MANY = {
    "smorest, many": (add_smorest(Out(many=True)), flask.Flask),
    "APIFlask, many": (add_output(Out(many=True)), apiflask.APIFlask),
}


class Robots(flask.Response):
    """An app's own class of responses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headers.setdefault("X-Robots-Tag", "noindex")


def flask_site(name: str, *, asynchronous: bool = False, schema: Callable[[Any], Any] = lambda view: view) -> Site:
    """``schema``: what is below ``once``."""
    add, make_app = (FLASK | MANY)[name]

    def site(rows: Mapping[str, Row], guard: Guard) -> Send:
        app = make_app("shop")
        app.response_class = Robots
        app.config.update(PROPAGATE_EXCEPTIONS=False, USE_X_SENDFILE=True)
        numbers = {name: f"n{number}" for number, name in enumerate(rows)}
        add(app, {numbers[name]: guard(name)(schema(in_flask(row))) for name, row in rows.items()})
        DistLock(app)

        def send(name: str, headers: Mapping[str, str]) -> Reply:
            response = WsgiClient(app).post(f"/{numbers[name]}", headers=dict(headers))
            return reply(response.status_code, response.get_data(), response.headers.items())

        return send

    def in_flask(row: Row) -> Any:
        def pay(*self: Any) -> Any:
            return row.make()

        async def apay(*self: Any) -> Any:
            return row.make()

        return apay if asynchronous else pay

    return site


@pytest.mark.parametrize("site", FLASK)
def test_values_in_flask(site: str) -> None:
    # Lists without end: on Python 3.13 Flask-RESTful's marshal never comes back from them, with or without us.
    endless = ("deep", "itself") if site == "flask_restful, marshalled" else ()
    check(flask_site(site), {name: row for name, row in VALUES.items() if name not in endless})


class Lines(Sequence[bytes]):
    """A body that is neither a list nor a stream."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return [b"a"][index]


def with_cookie_in_flask() -> Any:
    response = flask.make_response("paid", 201)
    response.set_cookie("session", "stolen")
    return response


def two_links() -> Any:
    response = flask.make_response("paid")
    response.headers.add("Link", "</a>")
    response.headers.add("Link", "</b>")
    return response


def bare_in_flask() -> Any:
    response = flask.make_response("paid")
    del response.headers["Content-Type"]
    return response


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("201 CREATED", [("Content-Type", "text/plain")])
    return [b"paid"]


COOKIE = {"Set-Cookie": "session=stolen", "Link": "</a>", "X-Debug": "1"}
#: Answers that only Flask knows, and of which no API makes anything else.
ANSWERS: dict[str, Row] = {
    "dict, status": Row(lambda: ({"paid": 7, "margin": 3}, 201)),
    "dict, status, headers": Row(lambda: ({"paid": 7, "margin": 3}, 201, {"Link": "</a>"})),
    "dict, several headers": Row(lambda: ({"paid": 7}, {"Link": ["</a>", "</b>"]})),
    "no parts": Row(lambda: ("paid", object()), kept=False),
    "dict, headers": Row(lambda: ({"paid": 7, "margin": 3}, {"Link": "</a>"})),
    "text, status in words": Row(lambda: ("paid", "201 CREATED")),
    "text, status as a name": Row(lambda: ("paid", HTTPStatus.CREATED)),
    "text, Headers": Row(lambda: ("paid", 201, Headers([("Link", "</a>"), ("Link", "</b>")]))),
    "text, pairs": Row(lambda: ("paid", 201, [("Link", "</a>"), ("Link", "</b>")])),
    "text, cookie": Row(lambda: ("paid", 201, dict(COOKIE))),
    "dict, no status": Row(lambda: ({"paid": 7}, 201, None)),
    "object, status": Row(lambda: (SimpleNamespace(paid=7), 201, {"Link": "</a>"}), kept=False),
    "bytes": Row(lambda: b"%PDF\xff"),
    "bytes, nothing": Row(lambda: (b"", 204)),
    "large text": Row(lambda: ("x" * (MAX_KEPT + 1), 201), kept=False),
    "large in Chinese": Row(lambda: "世" * (MAX_KEPT // 3 - 10)),
    "generator": Row(lambda: (each for each in "ab"), kept=False),
    "generator, status": Row(lambda: ((each for each in "ab"), 201), kept=False),
    "response": Row(lambda: flask.Response("paid", 201, mimetype="text/plain")),
    "response, status": Row(lambda: (flask.Response("paid", mimetype="text/plain"), 201, {"Link": "</a>"})),
    "stream": Row(lambda: flask.Response((each for each in "ab"), 201), kept=False),
    "sequence": Row(lambda: flask.Response(Lines()), kept=False),
    "redirect": Row(lambda: flask.redirect("/thanks/")),
    "404": Row(lambda: NotFound()),
    "401": Row(lambda: Unauthorized(www_authenticate=WWWAuthenticate("basic"))),
    "204": Row(lambda: flask.Response(status=204)),
    "206": Row(lambda: flask.Response("ab", 206, {"Content-Range": "bytes 0-1/9"})),
    "large 206": Row(lambda: flask.Response("x" * (MAX_KEPT + 1), 206, {"Content-Range": "bytes 0-1/9"}), kept=False),
    "cookie": Row(with_cookie_in_flask),
    "two links": Row(two_links),
    "no type": Row(bare_in_flask),
    "own policy": Row(lambda: flask.Response(PAGE.format("a"), headers={"Content-Security-Policy": "'nonce-a'"})),
    "nonce": Row(lambda: PAGE.format("a"), kept=False),
    "nonce in JSON": Row(lambda: flask.Response('{"text": " nonce=7"}', mimetype="application/json")),
    "nonce in a response": Row(lambda: flask.Response(PAGE.format("a")), kept=False),
    "file": Row(lambda: flask.send_file(BytesIO(b"%PDF"), "application/pdf"), kept=False),
    "X-Sendfile": Row(lambda: flask.send_file(__file__, "application/pdf")),
    "X-Accel-Redirect": Row(lambda: ("", {"X-Accel-Redirect": "/files/7.pdf"})),
    "WSGI application": Row(lambda: wsgi, kept=False),
}


#: What no API makes anything of, but the one of the test below.
ONLY_PLAIN = {"generator", "generator, status", "WSGI application"}
#: Of a response ``marshal_with`` makes an empty object.
RESPONSES = {"sequence", "large 206", "nonce in a response"}
#: What is never sent there.
NOT_MARSHALLED = {"stream", "file"}


@pytest.mark.parametrize("site", FLASK)
def test_answers_in_flask(site: str) -> None:
    left_out = (ONLY_PLAIN if site != "plain" else set()) | (NOT_MARSHALLED if "marshalled" in site else set())
    rows = {name: row for name, row in ANSWERS.items() if name not in left_out}
    check(flask_site(site), rows, takes_apart=lambda name: "marshalled" in site and name in RESPONSES)


@pytest.mark.parametrize("site", ["smorest, many", "APIFlask, many"])
def test_a_generator_that_a_schema_reads(site: str) -> None:
    """A lock made a response of it, whose chunks were no text: a 500 when the work was done."""

    def paid(number: int) -> Any:
        return SimpleNamespace(paid=number)

    rows: Mapping[str, Callable[[], Any]] = {
        "generator": lambda: (paid(n) for n in range(3)),
        "generator, status": lambda: ((paid(n) for n in range(3)), 202),
        "map": lambda: map(paid, range(3)),
    }
    check(flask_site(site), {name: Row(make, kept=False) for name, make in rows.items()})
    locked = flask_site(site)({"map": Row(rows["map"])}, lambda name: distributed_lockable(key="a"))
    for _ in "12":
        assert json.loads(locked("map", {}).body) == [{"paid": 0}, {"paid": 1}, {"paid": 2}]


def test_coroutines_in_flask() -> None:
    check(flask_site("plain", asynchronous=True), {**VALUES, **ANSWERS})


#: What makes data of an object, below ``once``, by the site that it is on.
SCHEMAS: dict[str, Callable[[Any], Any]] = {
    "flask_restful": flask_restful.marshal_with({"paid": flask_restful.fields.Raw}),
    "flask_restx": flask_restx.marshal_with({"paid": flask_restx.fields.Raw}),
    "plain": flask_smorest.Blueprint("other", "other").response(201, Out),
    "APIFlask": apiflask.APIBlueprint("other", "other").output(Out, 201),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("site", SCHEMAS)
def test_above_a_schema_it_keeps_what_the_schema_has_made(site: str) -> None:
    made = flask_site(site, schema=SCHEMAS[site])
    check(made, {"object": Row(VALUES["object"].make), "status": Row(lambda: (SimpleNamespace(paid=7), 202))})


# Starlette and FastAPI ----------------------------------------------------------------------------------------------


def made(body: Any = b"paid", status: int = 200, **headers: str) -> Callable[[], Any]:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: starlette.responses.Response(body, status, said)


def bare_in_starlette() -> Any:
    return starlette.responses.Response("paid", 201)  # which has no type


def with_cookie_in_starlette() -> Any:
    response = starlette.responses.PlainTextResponse("paid", headers={"Link": "</a>", "X-Debug": "1"})
    response.set_cookie("session", "stolen")
    return response


async def steps() -> Any:
    for each in "ab":
        yield each


ASGI_ANSWERS: dict[str, Row] = {
    "text": Row(lambda: starlette.responses.PlainTextResponse("bezahlt für €", 201, {"Location": "/orders/7"})),
    "page": Row(lambda: starlette.responses.HTMLResponse("<p>päid")),
    "bytes": Row(made(b"%PDF\xff\x00", Content_Type="application/pdf", Content_Disposition="attachment")),
    "JSON": Row(lambda: starlette.responses.JSONResponse({"paid": 7}, 201)),
    "redirect": Row(lambda: starlette.responses.RedirectResponse("/thanks", 303)),
    "to the login page": Row(lambda: starlette.responses.RedirectResponse("/login?next=/pay")),
    "204": Row(made(b"", 204)),
    "206": Row(made(b"ab", 206, Content_Range="bytes 0-1/9", Accept_Ranges="bytes")),
    "304": Row(made(b"", 304, ETag='"x"'), kept=False),
    "401": Row(made(b"", 401, WWW_Authenticate="Basic")),
    "402": Row(lambda: starlette.responses.JSONResponse({"error": "declined"}, 402)),
    "404": Row(made(b"no", 404)),
    "500": Row(made(b"no", 500)),
    "no type": Row(bare_in_starlette),
    "cookie": Row(with_cookie_in_starlette),
    "own policy": Row(made(PAGE.format("a"), Content_Type="text/html", Content_Security_Policy="'nonce-a'")),
    "nonce": Row(made(PAGE.format("a"), Content_Type="text/html"), kept=False),
    "X-Accel-Redirect": Row(made(b"", X_Accel_Redirect="/files/7.pdf", Content_Type="application/pdf")),
    "large": Row(made(b"x" * (MAX_KEPT + 1), ETag='"x"', Cache_Control="public, max-age=60"), kept=False),
    "large 402": Row(made(b"x" * (MAX_KEPT + 1), 402), kept=False),
    "large 206": Row(made(b"x" * (MAX_KEPT + 1), 206, Content_Range="bytes 0-1/9"), kept=False),
    "stream": Row(lambda: starlette.responses.StreamingResponse(steps(), 201), kept=False),
    "refused stream": Row(lambda: starlette.responses.StreamingResponse(steps(), 402), kept=False),
    "file": Row(lambda: starlette.responses.FileResponse(__file__, 201), kept=False),
}  # fmt: skip


def of_asgi(app: Any, views: Mapping[str, Any], add: Callable[[str, Any], None]) -> Send:
    StarletteDistLock(app, {"default": {"BACKEND": "memory"}})
    numbers = {name: number for number, name in enumerate(views)}
    for name, view in views.items():
        add(f"/{numbers[name]}", view)

    async def asked_for(name: str, headers: Mapping[str, str]) -> Reply:
        async with client_of(app) as client:
            response = await client.post(f"/{numbers[name]}", headers=headers)
            return reply(response.status_code, response.content, response.headers.multi_items())

    return lambda name, headers: asyncio.run(asked_for(name, headers))


def starlette_site(*, asynchronous: bool) -> Site:
    def site(rows: Mapping[str, Row], guard: Guard) -> Send:
        def view(row: Row) -> Any:
            def pay(request: starlette.requests.Request) -> Any:
                return row.make()

            return coroutine(pay) if asynchronous else pay

        app = starlette.applications.Starlette()
        views = {name: guard(name)(view(row)) for name, row in rows.items()}
        return of_asgi(app, views, lambda path, view: app.router.add_route(path, view, methods=["POST"]))

    return site


def fastapi_site(*, asynchronous: bool, injected: int | None = None, **route: Any) -> Site:
    """``injected``: a status that is set on the response that the endpoint is given."""

    def site(rows: Mapping[str, Row], guard: Guard) -> Send:
        def view(row: Row) -> Any:
            def pay() -> Any:
                return row.make()

            def pay_with(response: fastapi.Response) -> Any:
                response.status_code = injected or 200
                response.headers["Link"] = "</a>"
                return row.make()

            async def apay() -> Any:
                return row.make()

            async def apay_with(response: fastapi.Response) -> Any:
                return pay_with(response)

            chosen = (pay, apay) if injected is None else (pay_with, apay_with)
            given = chosen[asynchronous]
            given.__annotations__ = {name: fastapi.Response for name in given.__annotations__ if name != "return"}
            return given

        app = fastapi.FastAPI()
        views = {name: guard(name)(view(row)) for name, row in rows.items()}
        return of_asgi(app, views, lambda path, view: app.post(path, **route)(view))

    return site


#: What FastAPI makes an answer of, whatever it is: the client's answer is kept there, not the value.
OF_FASTAPI = {
    **{name: VALUES[name] for name in ("dict", "list", "text", "empty", "none", "number", "false", "float", "large")},
    **{name: VALUES[name]._replace(kept=True) for name in ("datetime", "uuid", "Decimal", "zone", "enum", "set")},
}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_in_starlette(asynchronous: bool) -> None:
    check(starlette_site(asynchronous=asynchronous), ASGI_ANSWERS)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_in_fastapi(asynchronous: bool) -> None:
    """``success`` has the last word there, too: a declined payment that it takes for done is not tried again."""
    check(fastapi_site(asynchronous=asynchronous), {**ASGI_ANSWERS, **OF_FASTAPI})
    for said in ({"status_code": 402}, {"injected": 402}, {"injected": 402, "status_code": 201}):
        check(fastapi_site(asynchronous=asynchronous, **said), OF_FASTAPI)
