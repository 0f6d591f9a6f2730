"""One table of views on a Django site, under WSGI and ASGI, and on a Flask app: what holds in both is said once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import URLPattern, path
from flask import Flask

import distlock_web.django.responses
import distlock_web.flask.responses
from distlock_web import distributed_lockable
from distlock_web.flask import DistLock

#: For ``@pytest.mark.parametrize``: a site, and how it is served.
SITES = ("django, wsgi", "django, asgi", "flask")


class View(NamedTuple):
    """A function without a request, and what it is locked with.

    ``on_busy`` and ``on_backend_error`` are names of our ``responses``, which the framework's own are taken for.
    """

    function: Callable[..., Any]
    locked: Mapping[str, Any] | None = None


class Answer(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


#: ``get("order/7/", **headers)``
Get = Callable[..., Answer]


def urls(views: Mapping[str, View]) -> list[URLPattern]:
    """For a module's ``urlpatterns``: the table's routes, which Django and Flask spell alike."""
    return [
        path(route, _locked(_for_django(view.function), view, distlock_web.django.responses))
        for route, view in views.items()
    ]


@contextmanager
def serving(site: str, urlconf: str, views: Mapping[str, View], settings: Any, **of_flask: Any) -> Iterator[Get]:
    """Both have the stores of the process, and the templates of ``settings`` and ``of_flask``."""
    settings.ROOT_URLCONF = urlconf
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    if site == "flask":
        app = Flask("shop", **of_flask)
        app.config["PROPAGATE_EXCEPTIONS"] = False
        header = getattr(settings, "DISTLOCK_REQUEST_ID_HEADER", None)
        if header is not None:
            app.config["DISTLOCK_REQUEST_ID_HEADER"] = header
        DistLock(app)
        for route, view in views.items():
            app.add_url_rule(f"/{route}", route, _locked(view.function, view, distlock_web.flask.responses))
        yield lambda address, **headers: _of_flask(app, address, headers)
    else:
        yield lambda address, **headers: _of_django(site, address, headers)


def _of_flask(app: Flask, address: str, headers: Mapping[str, str]) -> Answer:
    # Past the client's own check of headers, as a careless server hands them on.
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    if "Content-Type" in headers:
        environ["CONTENT_TYPE"] = headers["Content-Type"]
    response = app.test_client().get(f"/{address}", environ_overrides=environ)
    return Answer(response.status_code, response.text, dict(response.headers))


def _of_django(site: str, address: str, headers: dict[str, str]) -> Answer:
    if site == "django, asgi":
        response: Any = asyncio.run(AsyncClient(raise_request_exception=False).get(f"/{address}", headers=headers))
    else:
        response = Client(raise_request_exception=False).get(f"/{address}", headers=headers)
    return Answer(response.status_code, response.content.decode(), response.headers)


def _for_django(function: Callable[..., Any]) -> Callable[..., Any]:
    async def aview(request: Any, **values: Any) -> HttpResponse:
        return _response(await function(**values))

    def view(request: Any, **values: Any) -> HttpResponse:
        return _response(function(**values))

    return aview if iscoroutinefunction(function) else view


def _response(answer: Any) -> HttpResponse:
    body, headers = answer if isinstance(answer, tuple) else (answer, {})
    return HttpResponse(body, headers=headers)


def _locked(function: Callable[..., Any], view: View, responses: Any) -> Callable[..., Any]:
    if view.locked is None:
        return function
    options = dict(view.locked)
    for policy in {"on_busy", "on_backend_error"} & options.keys():
        options[policy] = getattr(responses, options[policy])
    return distributed_lockable(**options)(function)
