"""The body of a streaming response is in its request, with and without a lock; nothing of it stays in the thread."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, RequestFactory
from django.urls import path

from distlock_web import (
    LockRow,
    RequestIDFilter,
    aheld_locks,
    current_lease,
    current_request_id,
    distributed_lockable,
    held_locks,
    lock,
)
from distlock_web.core.request_id import current_origin, request_token
from distlock_web.django.middleware import RequestIDMiddleware

logger = logging.getLogger("shop")
#: Django's handlers look after connections that earlier tests have opened.
pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.urls(__name__), pytest.mark.django_db]


def told() -> str:
    """What code of the body knows of its request, which it also logs."""
    with lock("inside"):
        return words_of(held_locks("inside"))


async def atold() -> str:
    async with lock("inside"):
        return words_of(await aheld_locks("inside"))


def words_of(rows: list[LockRow]) -> str:
    logger.info("body")
    [row] = rows
    assert row.holder.request == request_token()[:8]
    return f"{current_request_id()} {row.holder.request_id} {row.holder.path} {row.holder.request}"


closed: list[str] = []


def chunks() -> Iterator[str]:
    try:
        yield told()
        yield "more"
    finally:
        closed.append(current_request_id())


async def achunks() -> AsyncIterator[str]:
    try:
        await asyncio.sleep(0)
        yield await atold()
        await asyncio.sleep(0)
        yield ""
    finally:
        closed.append(current_request_id())


class Told(io.BytesIO):
    """A file that is read by code of the project."""

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.tell():
            self.write(told().encode())
            self.seek(0)
        return super().read(size)


def stream(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    return StreamingHttpResponse(chunks())


@distributed_lockable(key="view")
def locked(request: HttpRequest) -> StreamingHttpResponse:
    def body() -> Iterator[str]:
        assert current_lease() is not None
        yield told()

    return StreamingHttpResponse(body())


@distributed_lockable(key="view")
async def alocked(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(achunks())


def file(request: HttpRequest) -> FileResponse:
    return FileResponse(Told())


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(achunks())


def leased(request: HttpRequest) -> StreamingHttpResponse:
    lease = lock("kept", expire=60).acquire()

    def body() -> Iterator[str]:
        with lock("kept") as inner:
            yield str(inner.depth)
        lease.release()

    return StreamingHttpResponse(body())


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request_token()[:8])


urlpatterns = [
    path("stream/", stream),
    path("locked/", locked),
    path("alocked/", alocked),
    path("file/", file),
    path("astream/", astream),
    path("leased/", leased),
    path("plain/", plain),
]


@pytest.fixture(autouse=True)
def _middleware(settings: Any) -> None:
    settings.MIDDLEWARE = ["distlock_web.django.middleware.RequestIDMiddleware"]
    closed.clear()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    caplog.handler.addFilter(RequestIDFilter())
    caplog.set_level(logging.INFO, "shop")
    return lambda: [(record.name, vars(record)["request_id"]) for record in caplog.records if record.name != "asyncio"]


def serve(url: str, request_id: str, read: Callable[[Any], bytes] = b"".join) -> tuple[str, str]:
    """What a WSGI server of one thread does: the header of the answer, and its body."""
    headers: dict[str, str] = {}
    environ = RequestFactory().get(url, headers={"Req-Id": request_id}).environ
    response: Any = WSGIHandler()(environ, lambda status, given, *error: headers.update(given))  # type: ignore[arg-type]
    try:
        return headers["Req-Id"], read(response).decode()
    finally:
        response.close()


def aserve(url: str, request_id: str) -> tuple[str, str]:
    async def ask() -> tuple[str, str]:
        response: Any = await AsyncClient().get(url, headers={"Req-Id": request_id})
        # In the task of the request, as a server does it.
        body = b"".join([chunk async for chunk in response] if response.streaming else [response.content])
        response.close()
        return response["Req-Id"], body.decode()

    return asyncio.run(ask())


ways = pytest.mark.parametrize(
    ("serve", "url"),
    [(serve, "/stream/"), (serve, "/locked/"), (serve, "/file/"), (aserve, "/astream/")],
    ids=["wsgi", "wsgi-locked", "wsgi-file", "asgi"],
)


@ways
def test_it_has_the_id_and_the_token_of_its_request(serve: Callable[..., tuple[str, str]], url: str) -> None:
    tokens = set()
    for request_id in ("first", "second"):
        header, body = serve(url, request_id)
        words = body.removesuffix("more").split()
        assert (header, words[:-1]) == (request_id, [request_id, request_id, "GET", url])
        tokens.add(words[-1])
    assert len(tokens | {serve_plain()}) == 3  # also for locks: the token of one request is no other's


def serve_plain() -> str:
    return serve("/plain/", "third")[1]


@ways
def test_its_lines_have_the_id_and_the_next_ones_have_not(
    serve: Callable[..., tuple[str, str]], url: str, logged: Callable[[], list[tuple[str, str]]]
) -> None:
    serve(url, "first")
    serve("/nowhere/", "second")
    logger.info("outside")
    assert logged() == [("shop", "first"), ("django.request", "second"), ("shop", "-")]
    assert current_origin() is None


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize(("serve", "url"), [(aserve, "/stream/"), (serve, "/astream/")])
def test_a_body_that_django_makes_a_list_of(serve: Callable[..., tuple[str, str]], url: str) -> None:
    assert serve(url, "first")[1].startswith("first first GET")


def test_a_body_that_is_closed_before_its_end_ends_in_its_request() -> None:
    serve("/stream/", "first", read=lambda response: next(iter(response)))
    assert closed == ["first"]


@pytest.mark.parametrize("aside", [False, True], ids=["in its loop", "in a thread of its loop"])
def test_so_does_an_asynchronous_one(aside: bool) -> None:
    """Django left it to the garbage collector, where it was in no request."""

    async def ask() -> None:
        response: Any = await RequestIDMiddleware(astream)(RequestFactory().get("/", headers={"Req-Id": "first"}))
        sent = aiter(response)
        await anext(sent)
        assert not closed
        if aside:
            await sync_to_async(response.close)()
        else:
            response.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert closed == ["first"]
        await sent.aclose()

    asyncio.run(ask())
    assert closed == ["first"]


def test_it_is_inside_of_the_locks_that_the_view_holds_still() -> None:
    assert serve("/leased/", "first")[1] == "2"
    assert current_lease() is None


def test_a_response_that_a_cancelled_middleware_has_keeps_no_lock() -> None:
    """GZip compressed it when the client went: Django keeps the cancellation, and its frames the response."""
    kept: list[BaseException] = []

    async def ask() -> None:
        asked = asyncio.Event()

        async def compressed(request: HttpRequest) -> StreamingHttpResponse:
            response = await alocked(request)
            asked.set()
            await asyncio.Event().wait()
            return response

        async def served() -> None:
            try:
                await RequestIDMiddleware(compressed)(RequestFactory().get("/"))
            except asyncio.CancelledError as error:
                kept.append(error)
                raise

        serving = asyncio.create_task(served())
        await asked.wait()
        assert await aheld_locks("view")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        async with lock("view", wait=20):
            pass

    gc.disable()
    try:
        asyncio.run(ask())
    finally:
        gc.enable()
    assert kept


@pytest.fixture
def _broken_off() -> Iterator[None]:
    """No lock is left to the garbage collector. Django leaves it the file of the request, which is collected here."""
    gc.disable()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.enable()


class Gone(OSError):
    """What a server's ``send`` raises: the client is gone."""


async def send_until(fails_at: int, url: str, *, hears: bool = False) -> None:
    """Serve a request whose client goes at this message: ``send`` raises, or the app ``hears`` of it beside."""
    sent, gone = 0, asyncio.Event()
    asked = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not asked:
            await gone.wait()
            return {"type": "http.disconnect"}
        return asked.pop()

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent > fails_at:
            if not hears:
                raise Gone
            gone.set()
            await asyncio.Event().wait()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "scheme": "http",
        "method": "GET", "path": url, "raw_path": url.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"testserver"), (b"req-id", b"first")], "server": ("testserver", 80),
        "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await ASGIHandler()(scope, receive, send)


@pytest.mark.usefixtures("_broken_off")
@pytest.mark.parametrize("url", ["/alocked/", "/astream/"])
@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_body_that_cannot_be_sent_ends_in_its_request_and_with_its_lock(url: str, fails_at: int) -> None:
    """Django closes no response whose ``send`` has raised, and keeps it until garbage is collected."""

    async def ask() -> None:
        with pytest.raises(Gone):
            await send_until(fails_at, url)
        async with lock("view", wait=20):
            pass
        for _ in range(500):
            if closed:
                break
            await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert closed == ["first"]


@pytest.mark.usefixtures("_broken_off")
def test_one_that_was_not_begun_is_left_to_the_garbage_collector() -> None:
    """As the page on streaming says."""

    async def ask() -> None:
        with pytest.raises(Gone):
            await send_until(0, "/alocked/")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        async with lock("view", wait=10):
            pass

    asyncio.run(ask())


@pytest.mark.usefixtures("_broken_off")
@pytest.mark.parametrize("hears", [False, True], ids=["send raises", "Django is told"])
def test_a_lock_is_held_until_the_body_has_ended_whoever_ends_it(monkeypatch: pytest.MonkeyPatch, hears: bool) -> None:
    """Django ends it, and who sees that nobody goes on with it: both at once, where Django closes the response."""
    free: list[bool] = []

    async def body() -> AsyncIterator[bytes]:
        try:
            yield b"x"
        finally:
            for _ in range(20):
                await asyncio.sleep(0.005)
            free.append(not await aheld_locks("view"))

    monkeypatch.setitem(globals(), "achunks", body)

    async def ask() -> None:
        with nullcontext() if hears else pytest.raises(Gone):
            await send_until(1, "/alocked/", hears=hears)
        async with lock("view", wait=10):
            assert free == [False]

    asyncio.run(ask())


def test_a_plain_file_is_still_left_to_the_servers_own_way() -> None:
    """By ``wsgi.file_wrapper``: what the handler looks at is the file, which is not to be replaced."""
    environ = RequestFactory().get("/file/").environ
    given: list[Any] = []
    environ["wsgi.file_wrapper"] = lambda file, size: given.append(file) or [b"sent"]
    response = WSGIHandler()(environ, lambda *answer: None)  # type: ignore[arg-type]
    assert list(response) == [b"sent"]
    assert isinstance(given[0], Told)
    given[0].close()
