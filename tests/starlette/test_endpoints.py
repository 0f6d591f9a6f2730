"""Locks on endpoints of FastAPI and Starlette: keys, refusals, ids, stores. All within one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio.to_thread
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from distlock_web import DistLockError, LockBusy, configure, current_lease, distributed_lockable, lock, once
from distlock_web.core.request_id import current_request_id
from distlock_web.ops.held_locks import list_all
from distlock_web.starlette import DistLock
from distlock_web.starlette.responses import problem, refused
from distlock_web.web.asgi import serving
from tests.support.asgi_clients import MakeApp, client_of, entered
from tests.support.gate import Gate
from tests.support.waiting import LONG, eventually


@pytest.fixture
def gate() -> Gate:
    gate = Gate()
    gate.opened.clear()
    return gate


def shop(app: Any, gate: Gate, **options: Any) -> Any:
    """An endpoint of each kind, under one lock for each order."""

    @app.post("/async/{order_id}")
    @distributed_lockable(key="pay:{order_id:int}", expire=LONG, **options)
    async def pay(order_id: str) -> dict[str, str]:
        await gate.apass_through()
        return {"paid": order_id, "request": current_request_id()}

    @app.post("/plain/{order_id}")
    @distributed_lockable(key="pay:{order_id:int}", expire=LONG, **options)
    def pay_in_thread(order_id: str) -> dict[str, str]:
        gate.pass_through()
        return {"paid": order_id, "request": current_request_id()}

    return app


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_of_two_clicks_one_is_done_and_one_is_told_when_to_come_again(
    make_app: MakeApp, gate: Gate, kind: str
) -> None:
    app = shop(make_app(), gate)
    async with client_of(app) as client:
        first = asyncio.create_task(client.post(f"/{kind}/0700", headers={"Req-Id": "click-1"}))
        await entered(gate.entered)
        second = await client.post(f"/{kind}/700")
        (row,) = list_all(app.state.distlock.registry).rows
        gate.opened.set()
        done = await first
    assert (done.status_code, done.json()) == (200, {"paid": "0700", "request": "click-1"})
    assert (second.status_code, second.json()["code"]) == (409, "lock_busy")
    assert int(second.headers["Retry-After"]) >= 1
    assert second.headers["Req-Id"] == second.json()["request_id"] != "click-1"
    holder = row.holder
    assert (holder.request_id, holder.path) == ("click-1", f"POST /{kind}/{{order_id}}")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_lock_is_free_after_the_answer_whatever_that_was(make_app: MakeApp, kind: str) -> None:
    gate = Gate()
    app = shop(make_app(), gate)
    async with client_of(app) as client:
        for _ in range(3):
            assert (await client.post(f"/{kind}/7")).status_code == 200
        assert (await client.post(f"/{kind}/seven")).status_code == 404
    assert not list_all(app.state.distlock.registry).rows


async def test_plain_endpoints_take_turns_in_the_pool_of_threads(app: Any) -> None:
    inside, most = 0, 0

    @app.get("/count")
    @distributed_lockable(key="count", wait=LONG, expire=LONG)
    def count() -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        assert current_lease() is not None
        inside -= 1
        return most

    async with client_of(app) as client:
        answers = await asyncio.gather(*(client.get("/count") for _ in range(8)))
    assert [each.json() for each in answers] == [1] * 8


async def test_a_plain_endpoint_waits_on_when_its_client_has_gone(app: Any) -> None:
    """A thread cannot be cancelled."""
    came: list[str] = []

    @app.get("/count")
    @distributed_lockable(key="count", wait=LONG, expire=LONG)
    def count() -> None:
        came.append("after its client")

    def waiters() -> int:
        return sum(row.lock.waiters for row in list_all(app.state.distlock.registry).rows)

    serving.set(app.state.distlock.registry)
    async with client_of(app) as client:
        async with lock("count", expire=LONG):
            request = asyncio.create_task(client.get("/count"))
            await asyncio.to_thread(eventually, waiters, "it waits")
            request.cancel()
            assert not came
        await asyncio.to_thread(eventually, lambda: came, "it has the lock")
        await asyncio.wait([request])


@pytest.mark.parametrize("endpoint", ["async", "plain"])
@pytest.mark.parametrize(("dependency", "status"), [("async", 200), ("plain", 409)])
async def test_an_endpoint_knows_of_the_lock_of_an_async_dependency_only(
    app: FastAPI, dependency: str, status: int, endpoint: str
) -> None:
    """FastAPI runs a plain one in a thread, with a copy of the context. So the endpoint would wait for itself."""

    async def lock_item() -> AsyncIterator[None]:
        async with lock("item", expire=LONG):
            yield

    def lock_in_thread() -> Iterator[None]:
        with lock("item", expire=LONG):
            yield

    locked = Depends(lock_item if dependency == "async" else lock_in_thread)

    def buy() -> None:
        with lock("item", expire=LONG):
            pass

    async def buy_on_loop() -> None:
        async with lock("item", expire=LONG):
            pass

    app.post("/buy", dependencies=[locked])(buy if endpoint == "plain" else buy_on_loop)
    async with client_of(app) as client:
        assert (await client.post("/buy")).status_code == status


async def test_a_refusal_and_a_second_answer_wait_for_no_thread(make_app: MakeApp, gate: Gate) -> None:
    """Which the endpoints that wait for their locks have taken, all of them."""
    app = shop(make_app(), gate)

    @app.post("/once")
    @once(key="once", keep="1h")
    async def once_only() -> str:
        return "done"

    anyio.to_thread.current_default_thread_limiter().total_tokens = 1  # of this test's event loop
    async with client_of(app) as client:
        assert (await client.post("/once")).status_code == 200
        first = asyncio.create_task(client.post("/plain/7"))
        await entered(gate.entered)
        refused, again = await client.post("/async/7"), await client.post("/once")
        gate.opened.set()
        assert [(await first).status_code, refused.status_code, again.status_code] == [200, 409, 200]
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize(
    ("kind", "headers", "expected"),
    [
        (FastAPI, {}, "application/problem+json"),
        (FastAPI, {"Accept": "text/html"}, "text/html; charset=utf-8"),
        (Starlette, {}, "text/html; charset=utf-8"),
        (Starlette, {"Accept": "application/json"}, "application/problem+json"),
        (Starlette, {"Sec-Fetch-Dest": "empty"}, "application/problem+json"),
        (Starlette, {"Sec-Fetch-Dest": "empty", "HX-Request": "true"}, "text/html; charset=utf-8"),
    ],
)
async def test_a_refusal_has_the_form_that_its_client_reads(
    make_app: MakeApp, gate: Gate, kind: Any, headers: dict[str, str], expected: str
) -> None:
    @distributed_lockable(key="a", expire=LONG)
    async def endpoint(request: Request) -> PlainTextResponse:
        await gate.apass_through()
        return PlainTextResponse("done")

    app = make_app(kind, routes=[Route("/", endpoint)])
    async with client_of(app) as client:
        first = asyncio.create_task(client.get("/"))
        await entered(gate.entered)
        answer = await client.get("/", headers={"Accept": "*/*", **headers})
        gate.opened.set()
        assert (await first).text == "done"
    assert (answer.status_code, answer.headers["Content-Type"]) == (409, expected)
    assert answer.headers.get("HX-Reswap") == ("none" if "HX-Request" in headers else None)
    assert answer.headers["Vary"] == "Accept, HX-Request"


async def test_what_the_app_says_itself_comes_first(make_app: MakeApp, gate: Gate) -> None:
    for error in (LockBusy, DistLockError):
        app = shop(make_app(), gate)
        app.add_exception_handler(error, lambda request, error: PlainTextResponse("mine", 418))
        gate.entered.clear()
        async with client_of(app) as client:
            first = asyncio.create_task(client.post("/async/7"))
            await entered(gate.entered)
            assert (await client.post("/async/7")).status_code == 418
            gate.opened.set()
            assert (await first).status_code == 200
        gate.opened.clear()


@pytest.mark.parametrize(("policy", "media_type"), [(problem, "application/problem+json"), (refused, "text/html")])
async def test_a_policy_of_ours_answers_for_endpoints_and_raises_elsewhere(
    make_app: MakeApp, gate: Gate, policy: Any, media_type: str
) -> None:
    app = shop(make_app(), gate, on_busy=policy)

    @distributed_lockable(key="pay:7", on_busy=policy)
    async def helper() -> None: ...

    @app.get("/helped")
    async def helped() -> str:
        with pytest.raises(LockBusy):
            await helper()
        return "refused"

    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/async/7"))
        await entered(gate.entered)
        answer = await client.post("/async/7", headers={"Accept": "text/html"})
        assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (409, media_type)
        assert (await client.get("/helped")).text == '"refused"'
        gate.opened.set()
        await first


async def test_the_methods_of_a_class_are_locked(make_app: MakeApp) -> None:
    class Orders(HTTPEndpoint):
        @distributed_lockable(key="order:{request.path_params[order_id]:int}")
        async def post(self, request: Request) -> PlainTextResponse:
            lease = current_lease()
            return PlainTextResponse(lease.name if lease else "free")

    @distributed_lockable(key="b", methods=["POST"])
    async def chosen(request: Request) -> PlainTextResponse:
        return PlainTextResponse("free" if current_lease() is None else "held")

    routes = [Route("/orders/{order_id}", Orders), Route("/chosen", chosen, methods=["GET", "POST"])]
    app = make_app(Starlette, routes=[Mount("/shop", routes=routes)])
    async with client_of(app) as client:
        assert (await client.post("/shop/orders/07")).text == "disLock:order:7"
        assert (await client.post("/shop/orders/seven")).status_code == 404
        assert [(await client.get("/shop/chosen")).text, (await client.post("/shop/chosen")).text] == ["free", "held"]


async def test_only_a_success_keeps_the_lock(app: Any) -> None:
    @app.get("/{status}")
    @distributed_lockable(key="mail", hold_at_least=LONG)
    async def mail(status: int) -> JSONResponse:
        if status == 500:
            raise HTTPException(500)
        return JSONResponse({}, status)

    async with client_of(app) as client:
        said = [(await client.get(f"/{status}")).status_code for status in (500, 402, 402, 200, 200)]
    assert said == [500, 402, 402, 200, 409]


async def test_the_id_of_a_request_goes_back_with_every_answer(make_app: MakeApp) -> None:
    app = make_app(extension={"header": "X-Trace"})

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("broken")

    @app.get("/own")
    async def own() -> JSONResponse:
        return JSONResponse(current_request_id(), headers={"x-trace": "own"})

    async with client_of(app) as client:
        for path in ("/broken", "/missing"):
            assert (await client.get(path, headers={"X-Trace": "r-1"})).headers.get_list("X-Trace") == ["r-1"]
            assert len((await client.get(path, headers={"X-Trace": "no id"})).headers["X-Trace"]) == 32
        answer = await client.get("/own", headers={"X-Trace": "r-2"})
    assert (answer.json(), answer.headers.get_list("X-Trace")) == ("r-2", ["own"])


async def test_whose_request_it_is_stands_beside_the_lock(make_app: MakeApp, gate: Gate) -> None:
    app = shop(make_app(extension={"user": lambda connection: connection.headers["X-User"]}), gate)
    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/async/7", headers={"X-User": "ann"}))
        await entered(gate.entered)
        (row,) = list_all(app.state.distlock.registry).rows
        gate.opened.set()
        await first
    assert row.holder.user == "ann"


async def test_each_app_has_its_stores_and_closes_them_at_its_end(make_app: MakeApp, gate: Gate) -> None:
    one, other = shop(make_app(store={"PREFIX": "one:"}), gate), shop(make_app(store={"PREFIX": "other:"}), Gate())
    configure({"default": {"BACKEND": "memory"}})
    closed = []
    for app in (one, other):
        registry = app.state.distlock.registry
        registry.close = lambda close=registry.close, app=app: (closed.append(app), close())
    async with client_of(one) as first, client_of(other) as second:
        running = asyncio.create_task(first.post("/async/7"))
        await entered(gate.entered)
        answer = await second.post("/async/7")
        gate.opened.set()
        assert answer.status_code == (await running).status_code == 200
    told: list[dict[str, str]] = []
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> dict[str, str]:
        return next(asked)

    async def send(message: Any) -> None:
        told.append(message)

    await one({"type": "lifespan", "state": {}}, receive, send)
    assert told[-1] == {"type": "lifespan.shutdown.complete"}
    assert closed == [one]


async def test_a_middleware_may_answer_for_a_lock_of_its_own(app: Any, gate: Gate) -> None:
    async def one_at_a_time(request: Request, call_next: Any) -> Any:
        try:
            async with lock("all", expire=LONG):
                return await call_next(request)
        except LockBusy as error:
            return refused(error)

    app.add_middleware(BaseHTTPMiddleware, dispatch=one_at_a_time)
    shop(app, gate)
    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/async/7"))
        await entered(gate.entered)
        answer = await client.post("/async/8")
        gate.opened.set()
        assert (await first).status_code == 200
    assert (answer.status_code, answer.json()["code"]) == (409, "lock_busy")


async def test_a_websocket_has_the_stores_of_its_app(app: Any) -> None:
    names = []

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await socket.accept()
        async with lock("socket") as lease:
            names.append((lease.name, current_request_id()))
        await socket.close()

    scope = {
        "type": "websocket", "path": "/ws", "headers": [(b"req-id", b"r-9")], "query_string": b"", "subprotocols": [],
    }  # fmt: skip
    asked = iter([{"type": "websocket.connect"}])

    async def receive() -> dict[str, str]:
        return next(asked)

    async def send(message: Any) -> None: ...

    await app(scope, receive, send)
    assert names == [("disLock:socket", "r-9")]


async def test_without_stores_of_its_own_an_app_has_those_of_the_process(store: str) -> None:
    app = FastAPI()
    assert DistLock(app).registry is None
    shop(app, Gate())
    async with client_of(app, raises=True) as client:
        assert (await client.post("/async/7")).status_code == 200


async def test_a_route_of_a_router_is_shown_with_its_prefix(app: Any, gate: Gate) -> None:
    router = APIRouter()
    shop(router, gate)
    app.include_router(router, prefix="/v1")
    async with client_of(app) as client:
        first = asyncio.create_task(client.post("/v1/async/7"))
        await entered(gate.entered)
        (row,) = list_all(app.state.distlock.registry).rows
        gate.opened.set()
        assert (await first).status_code == 200
    assert row.holder.path == "POST /v1/async/{order_id}"


async def test_a_mounts_parameters_are_shown_by_nobody(app: Any) -> None:
    seen: list[str] = []

    @distributed_lockable(key="invite")
    async def accept(request: Request) -> PlainTextResponse:
        (row,) = list_all(app.state.distlock.registry).rows
        seen.append(row.holder.path)
        return PlainTextResponse("accepted")

    app.router.routes.append(Mount("/invite/{token}", routes=[Route("/accept/{number}", accept)]))
    app.router.routes.append(Mount("/shop", routes=[Route("/accept/{number}", accept)]))
    async with client_of(app) as client:
        for path in ("/invite/secret/accept/7", "/shop/accept/7"):
            assert (await client.get(path)).text == "accepted"
    assert "secret" not in seen[0]
    assert seen[0].startswith("GET ")
