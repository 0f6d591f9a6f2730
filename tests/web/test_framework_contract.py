"""Every web framework passes the contract of frameworks."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import distlock_web.flask
import distlock_web.starlette
from distlock_web import distributed_lockable, once
from distlock_web.testing.framework_contract import FrameworkContract, Work
from distlock_web.testing.sites import ASGISite, Site, WSGISite

PAY = once(key="pay:{request.headers[Idempotency-Key]}", keep="1h", expire=60)
SHIP = distributed_lockable(key="order:{order_id:int}", expire=60)
EXPORT = distributed_lockable(key="export", expire=60)
urlpatterns: list[Any] = []


@pytest.fixture
def _django(settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    settings.DEBUG, settings.ALLOWED_HOSTS = False, ["*"]
    # Else a connection that an earlier test has left is asked for its state, which is not allowed here: a 500.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
    urlpatterns.clear()


def made(status: int, headers: Any, body: bytes) -> HttpResponse:
    return HttpResponse(body, status=status, headers=headers)


@pytest.mark.usefixtures("_django")
class TestDjango(FrameworkContract):
    @pytest.fixture
    def site(self, work: Work) -> Site:
        def answer(request: HttpRequest, order_id: str) -> HttpResponse:
            return made(*work.answer())

        def export(request: HttpRequest) -> StreamingHttpResponse:
            return StreamingHttpResponse(work.chunks())

        def help_out(request: HttpRequest, order_id: str) -> HttpResponse:
            return made(*work.help(order_id))

        urlpatterns[:] = [
            path("pay/<order_id>", PAY(answer)),
            path("ship/<order_id>", SHIP(answer)),
            path("export", EXPORT(export)),
            path("help/<order_id>", help_out),
        ]
        return WSGISite(WSGIHandler())


@pytest.fixture
def _broken_off() -> Iterator[None]:
    """Django leaves the body of a request that was broken off to the garbage collector: to that of this very test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.usefixtures("_django", "_broken_off")
class TestDjangoAsync(FrameworkContract):
    @pytest.fixture
    def site(self, work: Work) -> Site:
        async def answer(request: HttpRequest, order_id: str) -> HttpResponse:
            return made(*work.answer())

        async def export(request: HttpRequest) -> StreamingHttpResponse:
            return StreamingHttpResponse(work.achunks())

        async def help_out(request: HttpRequest, order_id: str) -> HttpResponse:
            return made(*await work.ahelp(order_id))

        urlpatterns[:] = [
            path("pay/<order_id>", PAY(answer)),
            path("ship/<order_id>", SHIP(answer)),
            path("export", EXPORT(export)),
            path("help/<order_id>", help_out),
        ]
        return ASGISite(ASGIHandler())


class TestFlask(FrameworkContract):
    @pytest.fixture
    def site(self, work: Work) -> Site:
        app = Flask("shop")
        distlock_web.flask.DistLock(app)

        @app.post("/pay/<order_id>")
        @PAY
        def pay(order_id: str) -> Any:
            status, headers, body = work.answer()
            return body, status, headers

        @app.post("/ship/<order_id>")
        @SHIP
        def ship(order_id: str) -> Any:
            status, headers, body = work.answer()
            return body, status, headers

        @app.get("/export")
        @EXPORT
        def export() -> Any:
            return work.chunks()

        @app.post("/help/<order_id>")
        def help_out(order_id: str) -> Any:
            return work.help(order_id).body

        return WSGISite(app)


def sent(status: int, headers: Any, body: bytes) -> Response:
    return Response(body, status, headers)


class TestStarlette(FrameworkContract):
    @pytest.fixture
    def site(self, work: Work) -> Site:
        async def answer(request: Request) -> Response:
            return sent(*work.answer())

        async def export(request: Request) -> Response:
            return StreamingResponse(work.achunks())

        async def help_out(request: Request) -> Response:
            return sent(*await work.ahelp(request.path_params["order_id"]))

        of_request = distributed_lockable(key="order:{request.path_params[order_id]:int}", expire=60)
        app = Starlette(
            routes=[
                Route("/pay/{order_id}", PAY(answer), methods=["POST"]),
                Route("/ship/{order_id}", of_request(answer), methods=["POST"]),
                Route("/export", EXPORT(export)),
                Route("/help/{order_id}", help_out, methods=["POST"]),
            ]
        )
        distlock_web.starlette.DistLock(app)
        return ASGISite(app)


class TestFastAPI(FrameworkContract):
    """Its endpoints are plain, and run in threads."""

    @pytest.fixture
    def site(self, work: Work) -> Site:
        app = FastAPI()
        distlock_web.starlette.DistLock(app)

        @app.post("/pay/{order_id}")
        @PAY
        def pay(order_id: str) -> Response:
            return sent(*work.answer())

        @app.post("/ship/{order_id}")
        @SHIP
        def ship(order_id: str) -> Response:
            return sent(*work.answer())

        @app.get("/export")
        @EXPORT
        def export() -> StreamingResponse:
            return StreamingResponse(work.chunks())

        @app.post("/help/{order_id}")
        def help_out(order_id: str) -> Response:
            return sent(*work.help(order_id))

        return ASGISite(app)
