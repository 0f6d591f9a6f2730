"""Apps that are mounted in an app: they answer by their own handlers, and are in no other way apps of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.routing import Host, Mount

from distlock_web import LockBusy, distributed_lockable, once
from distlock_web.starlette import DistLock
from distlock_web.testing import hold_lock, locks_in_memory
from tests.support.asgi_clients import client_of

KEY = {"Idempotency-Key": "7"}
Wrap = Callable[[FastAPI], Starlette]


def outer(*routes: Any, **options: Any) -> Starlette:
    app = Starlette(routes=list(routes), **options)
    DistLock(app)
    return app


MOUNTED: dict[str, Wrap] = {
    "mounted": lambda inner: outer(Mount("/api", inner)),
    "by a host": lambda inner: outer(Host("shop", Starlette(routes=[Mount("/api", inner)]))),
    "in a mounted one": lambda inner: outer(Mount("/api", Starlette(routes=[Mount("/", inner)]))),
    "behind a middleware": lambda inner: outer(Mount("/api", GZipMiddleware(inner))),
    "behind a mount's middleware": lambda inner: outer(Mount("/api", inner, middleware=[Middleware(GZipMiddleware)])),
    "twice": lambda inner: outer(Mount("/other", inner), Mount("/api", inner)),
}


@pytest.fixture
def inner() -> FastAPI:
    app = FastAPI()

    @app.post("/pay", status_code=201)
    @once(key="pay:{request.headers[Idempotency-Key]}", keep="1h")
    async def pay() -> dict[str, str]:
        return {"paid": "x" * 1000}

    @app.post("/ship")
    @distributed_lockable(key="ship")
    async def ship() -> None: ...

    return app


@pytest.mark.parametrize("wrap", MOUNTED.values(), ids=list(MOUNTED))
async def test_a_mounted_app_answers_as_the_app_does(inner: FastAPI, wrap: Wrap) -> None:
    with locks_in_memory():
        async with client_of(wrap(inner), raises=True) as client:
            first, second = [await client.post("/api/pay", headers=KEY) for _ in range(2)]
            lacks, reused = await client.post("/api/pay"), await client.post("/api/pay", headers=KEY, json=2)
            with hold_lock("ship"):
                busy = await client.post("/api/ship")
    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (201, {"paid": "x" * 1000})
    assert second.headers["Idempotency-Replayed"] == "true"
    assert [each.status_code for each in (lacks, reused, busy)] == [400, 422, 409]
    assert busy.headers["Content-Type"] == "application/problem+json"


async def test_what_a_mounted_apps_middleware_does_is_done_to_each_answer(inner: FastAPI) -> None:
    inner.add_middleware(GZipMiddleware, minimum_size=10)
    with locks_in_memory():
        async with client_of(outer(Mount("/api", inner))) as client:
            said = [await client.post("/api/pay", headers={**KEY, "Accept-Encoding": how}) for how in ("gzip", "none")]
    assert [(each.headers.get("Content-Encoding"), each.json()) for each in said] == [
        ("gzip", {"paid": "x" * 1000}), (None, {"paid": "x" * 1000})
    ]  # fmt: skip


async def test_a_mounted_apps_own_handler_comes_first(inner: FastAPI) -> None:
    inner.add_exception_handler(LockBusy, lambda request, error: PlainTextResponse("mine", 418))
    with locks_in_memory():
        async with client_of(outer(Mount("/api", inner)), raises=True) as client:
            with hold_lock("ship"):
                assert (await client.post("/api/ship")).text == "mine"


async def test_an_app_that_was_served_before_it_was_mounted(inner: FastAPI) -> None:
    with locks_in_memory():
        async with client_of(inner) as client:
            assert (await client.post("/nowhere")).status_code == 404
        async with client_of(outer(Mount("/api", inner)), raises=True) as client:
            with hold_lock("ship"):
                assert (await client.post("/api/ship")).status_code == 409


async def test_the_session_may_be_of_a_middleware_of_the_app_that_it_is_mounted_in(inner: FastAPI) -> None:
    """Whose cookie is signed anew: it is not what the first caller is known by."""

    @inner.post("/login/{name}")
    async def login(name: str, request: Request) -> None:
        request.session["name"] = name

    sessions = Middleware(SessionMiddleware, secret_key="s")
    with locks_in_memory():
        async with client_of(outer(Mount("/api", inner), middleware=[sessions])) as client:
            await client.post("/api/login/ann")
            assert (await client.post("/api/pay", headers=KEY)).status_code == 201
            before = client.cookies["session"]
            await asyncio.sleep(1.1)  # the time in its signature has seconds
            await client.post("/api/login/ann")
            assert client.cookies["session"] != before
            assert (await client.post("/api/pay", headers=KEY)).headers["Idempotency-Replayed"] == "true"
            await client.post("/api/login/bob")
            assert (await client.post("/api/pay", headers=KEY)).status_code == 422
