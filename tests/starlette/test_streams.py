"""A streamed answer goes on under its lock until its last byte, its failure, or the client's going."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect

from distlock_web import current_lease, distributed_lockable, lock, once
from distlock_web.ops.held_locks import list_all
from tests.support.asgi_clients import MakeApp, client_of
from tests.support.waiting import LONG

told: list[str] = []


def is_held(app: Any) -> bool:
    return bool(list_all(app.state.distlock.registry).rows)


def export(app: Any, body: str, view: str) -> None:
    """``/export``: a body of three chunks. It tells whether it is inside of its lock, in its ``finally``, too."""

    def note(what: str) -> None:
        told.append(f"{what}: {'inside' if current_lease() is not None and is_held(app) else 'outside'}")

    def plain() -> Iterator[str]:
        try:
            for number in range(3):
                note("chunk")
                yield f"{number}\n"
        finally:
            note("end")

    async def steps() -> AsyncIterator[str]:
        try:
            for number in range(3):
                note("chunk")
                yield f"{number}\n"
        finally:
            note("end")

    make: Callable[[], Any] = {"plain": plain, "async": steps}[body]
    locked = distributed_lockable(key="export", expire=LONG)
    if view == "plain":

        @app.get("/export")
        @locked
        def in_thread() -> StreamingResponse:
            return StreamingResponse(make())
    else:

        @app.get("/export")
        @locked
        async def on_loop() -> StreamingResponse:
            return StreamingResponse(make())


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    told.clear()


BOTH = pytest.mark.parametrize(
    ("body", "view"), [("plain", "plain"), ("plain", "async"), ("async", "plain"), ("async", "async")]
)


@BOTH
async def test_a_body_runs_inside_of_its_lock_to_its_last_byte(app: Any, body: str, view: str) -> None:
    export(app, body, view)
    async with client_of(app) as client:
        assert (await client.get("/export")).text == "0\n1\n2\n"
    assert told == ["chunk: inside"] * 3 + ["end: inside"]
    assert not is_held(app)


@pytest.mark.parametrize("is_first", [True, False], ids=["before DistLock", "after DistLock"])
@BOTH
async def test_a_base_middleware_around_a_locked_stream_changes_nothing(
    make_app: MakeApp, body: str, view: str, is_first: bool
) -> None:
    """It runs the app in a task of its own, and hands the body on from another one."""

    async def dispatch(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["Passed"] = "by"
        return response

    app = make_app(middleware=[Middleware(BaseHTTPMiddleware, dispatch=dispatch)] if is_first else [])
    if not is_first:
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    export(app, body, view)
    async with client_of(app) as client:
        answer = await client.get("/export")
    assert (answer.headers["Passed"], answer.text) == ("by", "0\n1\n2\n")
    assert told == ["chunk: inside"] * 3 + ["end: inside"]
    assert not is_held(app)


def scope_of(spec_version: str) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"spec_version": spec_version}, "http_version": "1.1", "method": "GET",
        "path": "/export", "raw_path": b"/export", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"shop")],
        "scheme": "http", "server": ("shop", 80), "client": ("client", 1),
    }  # fmt: skip


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@BOTH
async def test_a_client_that_goes_leaves_no_lock(app: Any, body: str, view: str, spec_version: str) -> None:
    """Between two chunks: by a message, or as the newer servers say it, by an error of ``send``."""
    export(app, body, view)
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            assert is_held(app)
            gone.set()
            if spec_version == "2.4":
                raise OSError("the client has gone")
            await asyncio.Event().wait()  # a client that does not read on

    # As without us; of older Starlettes the error of `send`, in a group.
    told_of = pytest.RaisesGroup(pytest.RaisesExc((ClientDisconnect, OSError)), allow_unwrapped=True)
    raised = told_of if spec_version == "2.4" else nullcontext()
    with raised:
        await app(scope_of(spec_version), receive, send)
    assert not is_held(app)
    assert told == ["chunk: inside", "end: inside"]


@pytest.mark.parametrize("given", ["with the response", "by FastAPI"])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_background_task_runs_after_the_lock_also_of_a_client_that_has_gone(
    app: Any, given: str, leaves: bool
) -> None:
    def work() -> None:
        with lock("export"):  # which would wait for its own request
            told.append("task")

    @app.get("/export")
    @distributed_lockable(key="export", expire=LONG)
    async def export(tasks: BackgroundTasks) -> StreamingResponse:
        async def steps() -> AsyncIterator[str]:
            try:
                yield "1"
            finally:
                told.append("end")

        task = BackgroundTask(work)
        if given == "by FastAPI":
            tasks.add_task(task)
        return StreamingResponse(steps(), background=task if given == "with the response" else None)

    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if leaves and message["type"] == "http.response.body":
            gone.set()
            await asyncio.Event().wait()

    await app(scope_of("2.3"), receive, send)
    assert told == ["end", "task"]


async def test_a_request_that_is_cancelled_leaves_no_lock(app: Any) -> None:
    export(app, "async", "async")
    sending = asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    request = asyncio.create_task(app(scope_of("2.3"), receive, send))
    await sending.wait()
    assert is_held(app)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert not is_held(app)


@pytest.mark.parametrize("view", ["plain", "async"])
async def test_a_file_is_sent_under_the_lock(app: Any, tmp_path: Path, view: str) -> None:
    file = tmp_path / "export.csv"
    file.write_text("1,2\n")
    locked = distributed_lockable(key="export", expire=LONG)
    if view == "plain":
        app.get("/export")(locked(lambda: FileResponse(file)))
    else:

        @app.get("/export")
        @locked
        async def on_loop() -> FileResponse:
            return FileResponse(file)

    held = []

    async def receive() -> dict[str, Any]:  # the client stays to the end
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        held.append(is_held(app))

    await app(scope_of("2.3"), receive, send)
    assert held
    assert all(held)
    assert not is_held(app)


class Events(Response):
    """A stream by its looks only, as sse-starlette's: no subclass of ours or Starlette's, and without a body."""

    def __init__(self, steps: AsyncIterator[str]) -> None:
        self.body_iterator = steps
        self.status_code, self.background = 200, None
        self.init_headers({"Content-Type": "text/event-stream"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self.body_iterator:
            await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("decorator", [distributed_lockable, once])
async def test_a_stream_of_a_class_that_we_do_not_know_goes_on_under_its_lock(app: Any, decorator: Any) -> None:
    more: dict[str, Any] = {"keep": "1h"} if decorator is once else {"hold_at_least": 0.01}

    @app.get("/export")
    @decorator(key="export", expire=LONG, **more)
    async def export() -> Events:
        async def steps() -> AsyncIterator[str]:
            yield str(current_lease() is not None and is_held(app))

        return Events(steps())

    async with client_of(app) as client:
        assert (await client.get("/export")).text == "True"


async def test_a_stream_of_which_the_lock_is_not_kept(app: Any) -> None:
    @app.get("/export")
    @distributed_lockable(key="export", until="return")
    async def export() -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield str(is_held(app))

        return StreamingResponse(body())

    async with client_of(app) as client:
        assert (await client.get("/export")).text == "False"
