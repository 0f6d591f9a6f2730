"""Another program has named the request, too: its id is ours. With the real ones, in Django and in Flask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flask
import httpx
import pytest
import structlog
from asgi_correlation_id import CorrelationIdMiddleware
from asgi_correlation_id.context import correlation_id
from asgiref.wsgi import WsgiToAsgi
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path
from flask import Flask
from flask_log_request_id import RequestID

from distlock_web import RequestIDFilter, current_request_id, distributed_lockable, events, held_locks
from distlock_web.core.request_id import request_token
from distlock_web.flask import DistLock
from distlock_web.web import neighbours

OURS = "distlock_web.django.middleware.RequestIDMiddleware"
GUID = "django_guid.middleware.guid_middleware"
STRUCTLOG = "django_structlog.middlewares.RequestMiddleware"
BY_HAND = f"{__name__}.NamesByHand"

#: What a client sends that would like to be believed.
HOSTILE = ("a b", "x" * 129, "<script>alert(1)</script>", "a\0b", "a, b", "")
UUID4 = "7b3b1e1cbf3c4f0c8d5d3f4a1c2b3d4e"

# The database, for Django looks at the connections of earlier tests when a request begins.
pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.django_db]


class NamesByHand:
    """What many projects have: ten lines of their own."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.request_id = request.headers.get("X-Request-ID", "by-hand")  # type: ignore[attr-defined]
        response = self.get_response(request)
        response["X-Request-ID"] = request.request_id  # type: ignore[attr-defined]
        return response


def theirs(request: Any) -> object:
    """What the neighbour calls the running request, asked as its own users ask."""
    from django_guid import get_guid

    by_hand = "X-Request-ID" if BY_HAND in django_settings().MIDDLEWARE else None
    return (
        correlation_id.get()
        or structlog.contextvars.get_contextvars().get("request_id")
        or get_guid()
        or (by_hand and request.headers.get(by_hand, "by-hand"))
        or request.headers.get("X-Request-ID")
    )


def django_settings() -> Any:
    from django.conf import settings

    return settings


def report(theirs: object) -> dict[str, object]:
    """What people see of this request, everywhere."""
    records: list[str] = []
    handler = logging.Handler()
    handler.addFilter(RequestIDFilter())
    handler.emit = lambda record: records.append(vars(record)["request_id"])  # type: ignore[method-assign]
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    logger.warning("sold out")
    logger.removeHandler(handler)
    (held,) = held_locks()
    return {
        "theirs": theirs,
        "seen": [current_request_id(), *records, held.holder.request_id],
        "token": request_token(),
    }


@distributed_lockable("order")
def view(request: HttpRequest) -> JsonResponse:
    told = report(theirs(request))
    told["seen"] = [*told["seen"], request.request_id]  # type: ignore[misc, attr-defined]
    return JsonResponse(told)


@distributed_lockable("order")
async def aview(request: HttpRequest) -> JsonResponse:
    told = await asyncio.to_thread(report, theirs(request))
    return JsonResponse(told)


urlpatterns = [path("", view), path("async/", aview)]


class Site(NamedTuple):
    get: Callable[..., httpx.Response]
    adds_header: str | None  #: the neighbour's own, in the answer


class Neighbour(NamedTuple):
    middleware: list[str]  #: Django's
    header: str | None  #: in which the neighbour sends its id back
    wraps: bool = False  #: the whole application, in ASGI


DJANGO = {
    "django-guid above ours": Neighbour([GUID, OURS], "Correlation-ID"),
    "django-guid below ours": Neighbour([OURS, GUID], "Correlation-ID"),
    "django-structlog above ours": Neighbour([STRUCTLOG, OURS], None),
    "django-structlog below ours": Neighbour([OURS, STRUCTLOG], None),
    "by hand above ours": Neighbour([BY_HAND, OURS], "X-Request-ID"),
    "by hand below ours": Neighbour([OURS, BY_HAND], "X-Request-ID"),
    "asgi-correlation-id": Neighbour([OURS], "X-Request-ID", wraps=True),
}


def asgi(application: Any) -> Callable[..., httpx.Response]:
    def get(address: str = "/", **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.get(address, headers=_raw(headers))

        return asyncio.run(ask())

    return get


def wsgi(application: Any) -> Callable[..., httpx.Response]:
    def get(address: str = "/", **headers: str) -> httpx.Response:
        with httpx.Client(transport=httpx.WSGITransport(application), base_url="http://shop") as client:
            return client.get(address, headers=_raw(headers))

    return get


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """As a careless client sends them: ``X_Request_ID`` is ``X-Request-ID``."""
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


def _app() -> Flask:
    app = Flask("shop")
    DistLock(app)

    @app.get("/")
    @distributed_lockable("order")
    def order() -> dict[str, object]:
        return report(
            correlation_id.get()
            or structlog.contextvars.get_contextvars().get("request_id")
            or flask.g.get("log_request_id")
            or flask.g.get("request_id")
            or flask.request.headers.get("X-Request-ID")
        )

    return app


def _flask(neighbour: str) -> Site:
    app = _app()
    if neighbour == "flask-log-request-id":
        RequestID(app)
        return Site(wsgi(app), None)
    if neighbour == "by hand":
        app.before_request(lambda: setattr(flask.g, "request_id", flask.request.headers.get("X-Request-ID", "by-hand")))
        return Site(wsgi(app), None)
    if neighbour == "structlog":

        @app.before_request
        def bind() -> None:
            structlog.contextvars.clear_contextvars()
            structlog.contextvars.bind_contextvars(request_id=flask.request.headers.get("X-Request-ID", "by-hand"))

        return Site(wsgi(app), None)
    if neighbour == "asgi-correlation-id":
        application: Any = WsgiToAsgi(app)  # type: ignore[no-untyped-call]
        return Site(asgi(CorrelationIdMiddleware(application)), "X-Request-ID")
    return Site(wsgi(app), None)


FLASK = ("flask-log-request-id", "by hand", "structlog", "asgi-correlation-id")


KINDS = ("wsgi", "asgi")


@pytest.fixture(params=[*(f"{name}, {kind}" for name in DJANGO for kind in KINDS[DJANGO[name].wraps :]), *FLASK])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _site(request.param)


@pytest.fixture(autouse=True)
def _nobody_else() -> Iterator[None]:
    """The context variables of the neighbours are the test's own, for it runs WSGI in its own thread."""
    yield
    structlog.contextvars.clear_contextvars()
    correlation_id.set(None)
    from django_guid import clear_guid

    clear_guid()


def _site(name: str) -> Iterator[Site]:
    if name in FLASK:
        yield _flask(name)
        return
    name, kind = name.rsplit(", ", 1)
    neighbour = DJANGO[name]
    apps = [*django_settings().INSTALLED_APPS, "django_guid", "django_structlog"]
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=neighbour.middleware, INSTALLED_APPS=apps):
        if kind == "wsgi":
            yield Site(wsgi(get_wsgi_application()), neighbour.header)
            return
        application: Any = get_asgi_application()
        yield Site(asgi(CorrelationIdMiddleware(application) if neighbour.wraps else application), neighbour.header)


def test_its_id_is_ours_wherever_people_see_one_and_no_second_header_is_added(site: Site) -> None:
    for headers in ({}, {"X_Request_ID": UUID4}, {}):  # three requests of one thread: nothing is left of the one before
        answer = site.get(**headers)
        told = answer.json()
        assert answer.status_code == 200
        assert told["theirs"], "the neighbour is there"
        assert set(told["seen"]) == {told["theirs"]}
        assert "Req-Id" not in answer.headers
        if site.adds_header:
            assert answer.headers.get_list(site.adds_header) == [told["theirs"]]


def test_the_token_stays_ours(site: Site) -> None:
    tokens = {site.get(X_Request_ID=UUID4, Req_Id=UUID4, Correlation_ID=UUID4).json()["token"] for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) == 24 and token not in UUID4 for token in tokens)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_it_has_taken_from_a_client_as_it_came_is_checked(site: Site, hostile: str) -> None:
    answer = site.get(X_Request_ID=hostile)
    told = answer.json()
    (seen,) = set(told["seen"])
    assert seen != hostile
    assert seen == (told["theirs"] if seen == told["theirs"] else answer.headers["Req-Id"])


def test_a_404_has_it_too() -> None:
    """Nothing was routed: there is no view whose beginning would be a moment to ask."""
    for name in ("django-guid above ours, wsgi", "django-guid below ours, asgi", "by hand below ours, wsgi"):
        for site in _site(name):
            answer = site.get("/nowhere/")
            assert (answer.status_code, "Req-Id" in answer.headers) == (404, False), name


@pytest.mark.parametrize("kind", ["django, wsgi", "django, asgi", "flask"])
@pytest.mark.parametrize("chosen", [None, "Req-Id", "Trace"])
def test_the_id_of_a_proxy_is_that_of_the_request_unless_the_project_has_chosen_a_header(
    kind: str, chosen: str | None, settings: Any
) -> None:
    settings.MIDDLEWARE, settings.ROOT_URLCONF = [OURS], __name__
    if chosen:
        settings.DISTLOCK_REQUEST_ID_HEADER = chosen
    if kind == "flask":
        app = Flask("shop")
        app.config.update({"DISTLOCK_REQUEST_ID_HEADER": chosen} if chosen else {})
        DistLock(app)
        app.add_url_rule("/", "order", distributed_lockable("order")(lambda: report(None)))
        get = wsgi(app)
    else:
        get = wsgi(get_wsgi_application()) if kind == "django, wsgi" else asgi(get_asgi_application())

    def asked(**headers: str) -> tuple[str, str | None]:
        answer = get(**headers)
        (seen,) = set(answer.json()["seen"])
        return seen, answer.headers.get(chosen or "Req-Id")

    seen, sent = asked(X_Request_ID="proxy-1")
    assert (seen, sent) == ("proxy-1", None) if chosen is None else seen == sent != "proxy-1"
    assert asked(X_Request_ID="proxy-1", **{(chosen or "Req-Id").replace("-", "_"): "ours-1"}) == ("ours-1", "ours-1")
    for hostile in HOSTILE:
        seen, sent = asked(X_Request_ID=hostile)
        assert seen == sent != hostile


def test_events_have_it(settings: Any) -> None:
    heard: list[str] = []

    def hear(event: events.Event) -> None:
        heard.append(event.request_id)

    events.subscribe(hear)
    try:
        for site in _site("django-guid below ours, wsgi"):
            told = site.get().json()
        events.flush(10)
    finally:
        events.unsubscribe(hear)
    assert set(heard) == {told["theirs"]}


def test_a_neighbour_that_fails_fails_no_request(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    asked: list[object] = []

    def fails(module: object) -> object:
        asked.append(module)
        raise AttributeError("another version")

    monkeypatch.setattr(neighbours, "_NEIGHBOURS", (("structlog.contextvars", fails), *neighbours._NEIGHBOURS))
    settings.MIDDLEWARE, settings.ROOT_URLCONF = [OURS], __name__
    answer = wsgi(get_wsgi_application())()
    assert set(answer.json()["seen"]) == {answer.headers["Req-Id"]}
    assert asked
