"""What is wrong with a locked endpoint is said when the app starts, or where the decorator stands: not by a request."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from distlock_web import ConfigurationError, configure, distributed_lockable, once
from distlock_web.core import registry
from distlock_web.starlette import DistLock, extension
from tests.support.asgi_clients import MakeApp, client_of


async def start(app: Any) -> None:
    """Its first request."""
    async with client_of(app, raises=True) as client:
        await client.get("/")


def skipped() -> Any:
    return distributed_lockable(key="a", on_busy="skip")(endpoint)


async def endpoint() -> str:
    return "done"


def without_key() -> Any:
    return once(keep="1h")(endpoint)


def mounted(app: FastAPI, view: Any) -> None:
    app.router.routes.append(Mount("/shop", routes=[Route("/pay", view)]))


def included(app: FastAPI, view: Any) -> None:
    router = APIRouter()
    router.post("/pay")(view)
    app.include_router(router)


def in_a_partial(app: FastAPI, view: Any) -> None:
    app.post("/pay")(partial(view))


@pytest.mark.parametrize("add", [lambda app, view: app.post("/pay")(view), mounted, included, in_a_partial])
@pytest.mark.parametrize(
    ("view", "message"),
    [
        (skipped, r"'endpoint' has on_busy=\"skip\".*409 with Retry-After"),
        (without_key, "'endpoint': once needs a key that says which requests are the same"),
    ],
)
async def test_an_endpoint_that_would_answer_wrongly(
    app: FastAPI, add: Callable[..., Any], view: Callable[[], Any], message: str
) -> None:
    add(app, view())
    with pytest.raises(ConfigurationError, match=message):
        await start(app)


async def test_a_server_is_told_at_the_start_why_there_is_none(app: FastAPI) -> None:
    """By a message: it takes an exception for an app that knows no start, and would serve it."""
    app.post("/pay")(skipped())
    told: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        told.append(message)

    with pytest.raises(ConfigurationError, match="on_busy"):
        await app({"type": "lifespan", "state": {}}, receive, send)
    ((kind, message),) = ((each["type"], each["message"]) for each in told)
    assert kind == "lifespan.startup.failed"
    assert "'endpoint' has on_busy=\"skip\"" in message


async def test_a_mounted_app_is_measured_by_its_own_stores(make_app: MakeApp) -> None:
    other = FastAPI()
    DistLock(other, {"default": {"BACKEND": "memory"}, "slow": {"BACKEND": "memory"}})
    other.post("/")(distributed_lockable(key="a", store="slow")(endpoint))
    app = make_app(store={"ON_BUSY": "skip"})
    app.mount("/other", other)
    app.router.routes.append(Mount("/zipped", other, middleware=[Middleware(GZipMiddleware)]))
    async with client_of(app, raises=True) as client:
        for path in ("/other/", "/zipped/"):
            assert (await client.post(path)).json() == "done"


async def test_a_mounted_app_without_stores_is_measured_by_those_around_it(make_app: MakeApp) -> None:
    app, other = make_app(), FastAPI()
    other.post("/")(skipped())
    app.mount("/other", other)
    with pytest.raises(ConfigurationError, match="on_busy"):
        await start(app)


async def test_a_store_that_skips(make_app: MakeApp) -> None:
    app = make_app(store={"ON_BUSY": "skip"})
    app.post("/pay")(distributed_lockable(key="a")(endpoint))
    with pytest.raises(ConfigurationError, match="skipped, it would return None"):
        await start(app)


async def test_a_store_of_the_process_that_skips(app_of_the_process: FastAPI) -> None:
    configure({"default": {"BACKEND": "memory", "ON_BUSY": "skip"}})
    app_of_the_process.post("/pay")(distributed_lockable(key="a")(endpoint))
    with pytest.raises(ConfigurationError, match="skipped, it would return None"):
        await start(app_of_the_process)


@pytest.mark.parametrize("url", ["", "memory://", "zookeeper://127.0.0.1:1"])
@pytest.mark.parametrize("before", ["nothing", "a lock was taken", "fewer were configured"])
@pytest.mark.parametrize(
    "view",
    [
        lambda: distributed_lockable(key="a", store="slow")(endpoint),
        lambda: distributed_lockable(key="a", limit=2)(endpoint),
        lambda: distributed_lockable(key="a", shared=True)(endpoint),
        lambda: distributed_lockable(key="a", max_waiters=2, wait=1)(endpoint),
        lambda: once(key="a", keep="1h")(endpoint),
    ],
    ids=["another store", "limit", "shared", "max_waiters", "once"],
)
async def test_stores_that_are_configured_when_the_app_has_started(
    monkeypatch: pytest.MonkeyPatch, url: str, before: str, view: Callable[[], Any]
) -> None:
    """In its lifespan: what is known at the start, by ``DISTLOCK_URL`` or from before, says nothing of them."""
    monkeypatch.setattr(registry, "_configured", None)
    monkeypatch.setenv("DISTLOCK_URL", url)
    if before == "a lock was taken" and url:
        registry.registry()
    if before == "fewer were configured":
        configure({"default": {"LOCATION": "zookeeper://127.0.0.1:1"}})
    app = FastAPI()
    DistLock(app)
    app.post("/pay")(view())
    await start(app)


@pytest.fixture
def app_of_the_process(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(registry, "_configured", None)
    app = FastAPI()
    DistLock(app)
    return app


def test_the_url_counts_that_stands_there_when_the_first_lock_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app may be imported before a test, or the project, names another one."""
    monkeypatch.setattr(registry, "_configured", None)
    monkeypatch.setenv("DISTLOCK_URL", "redis://127.0.0.1:1")
    DistLock(FastAPI())
    monkeypatch.setenv("DISTLOCK_URL", "memory://")
    assert registry.registry().store("default").config.location == "memory://"


def test_a_look_at_the_url_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """uWSGI and ``gunicorn --preload`` fork where the app has been imported."""
    started: list[object] = []
    monkeypatch.setattr(registry, "_configured", None)
    monkeypatch.setenv("DISTLOCK_URL", "redis://127.0.0.1:1")
    gc.collect()  # the stores of earlier tests
    monkeypatch.setattr(registry, "start_thread", lambda *what, **options: started.append(what))
    DistLock(FastAPI())
    gc.collect()
    assert started == []


def test_a_wrong_address_of_the_environment_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one whose driver is not installed: both are found when its backend is made."""
    monkeypatch.setattr(registry, "_configured", None)
    monkeypatch.setenv("DISTLOCK_URL", "redsi://127.0.0.1/0")
    with pytest.raises(ConfigurationError, match="redsi"):
        DistLock(FastAPI())


async def name_of(connection: HTTPConnection) -> str:
    return "ann"


def test_a_user_that_nobody_would_await(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(extension, "make_backends", made.append)
    with pytest.raises(ConfigurationError, match=r"user= is .*name_of.* a coroutine function"):
        DistLock(FastAPI(), {"default": {"BACKEND": "memory"}}, user=name_of)
    assert made == []  # which nobody would close


def test_a_lock_above_its_route_is_refused_where_it_stands(app: FastAPI) -> None:
    async def pay() -> None: ...

    registered = app.post("/pay")(pay)
    with pytest.raises(ConfigurationError, match=r"stands above the route of the view 'pay'.*below @app\.post"):
        distributed_lockable(key="a")(registered)


router = APIRouter()


@distributed_lockable(key="a")
@router.post("/pay")
async def locked_too_late() -> None: ...


async def test_a_lock_above_the_route_of_a_router_is_refused_at_the_start(app: FastAPI) -> None:
    app.include_router(router)
    with pytest.raises(ConfigurationError, match="above the route of the view 'locked_too_late'"):
        await start(app)


def test_a_stream_is_nothing_for_once() -> None:
    async def export() -> StreamingResponse:
        return StreamingResponse([])

    with pytest.raises(ConfigurationError, match="it returns a stream, which once cannot keep"):
        once(key="a", keep="1h")(export)


async def test_what_is_right_is_let_through(make_app: MakeApp) -> None:
    app = make_app(Starlette, routes=[Route("/", distributed_lockable(key="a")(_home))])
    await start(app)


async def _home(request: Any) -> StreamingResponse:
    return StreamingResponse(iter(["home"]))
