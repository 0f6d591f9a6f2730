"""What ends a streamed body ends its lock, once; each of its steps is inside; what a loss of the lock does to it."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from typing import Any

import pytest
from django.core.signals import request_finished
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, StreamingHttpResponse
from django.test import RequestFactory

from distlock_web import LeaseLost, current_lease, distributed_lockable, lock, once
from distlock_web.core.process import Process, check_process
from distlock_web.core.registry import registry
from distlock_web.django.streaming import send_in_request
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.web.kept_answers import REPLAYED
from tests.support.forking import beside_threads, told_by_child
from tests.support.revoking import revoke
from tests.support.waiting import eventually
from tests.support.web_servers import is_free, the_lock


@pytest.fixture(autouse=True)
def _no_database() -> Iterator[None]:
    """The end of a response looks after the connections to databases, which is no business of these tests."""
    request_finished.disconnect(close_old_connections)
    yield
    request_finished.connect(close_old_connections)


class Body:
    """A body that remembers inside of how many blocks each of its steps ran."""

    def __init__(self, error: Exception | None = None) -> None:
        self.depths: list[int] = []
        self._error = error

    def note(self) -> None:
        lease = current_lease()
        self.depths.append(lease.depth if lease else 0)

    def chunks(self) -> Iterator[bytes]:
        try:
            for _ in range(3):
                with lock("export"):
                    self.note()
                yield b"x"
            if self._error:
                raise self._error
        finally:
            self.note()

    async def achunks(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(3):
                async with lock("export"):
                    self.note()
                yield b"x"
                await asyncio.sleep(0)
            if self._error:
                raise self._error
        finally:
            await asyncio.sleep(0)
            self.note()


def streaming(body: Any, **options: Any) -> StreamingHttpResponse:
    """The response of a view under a lock."""
    view = distributed_lockable(key="export", **{"expire": 60, **options})(lambda request: StreamingHttpResponse(body))
    response = view(RequestFactory().get("/"))
    assert current_lease() is None
    return response


async def astreaming(body: Any, **options: Any) -> StreamingHttpResponse:
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(body)

    view = distributed_lockable(key="export", **{"expire": 60, **options})(view)
    response = await view(RequestFactory().get("/"))
    assert current_lease() is None
    return response


def test_the_last_byte_ends_it(injector: FaultInjector) -> None:
    body = Body()
    response = streaming(body.chunks())
    chunks = iter(response)
    assert [next(chunks) for _ in range(3)] == [b"x"] * 3
    assert not is_free()
    assert next(chunks, None) is None
    assert is_free()
    assert next(chunks, None) is None  # as an iterator has to be, for ever
    response.close()
    assert body.depths == [2, 2, 2, 1]
    assert injector.calls.count("release") == 1


async def test_the_last_byte_ends_it_async(injector: FaultInjector) -> None:
    body = Body()
    response = await astreaming(body.achunks())
    chunks = aiter(response)
    assert [await anext(chunks) for _ in range(3)] == [b"x"] * 3
    assert not is_free()
    assert await anext(chunks, None) is None
    assert is_free()
    response.close()
    assert body.depths == [2, 2, 2, 1]
    assert injector.calls.count("release") == 1


def reason_of_loss(step: Callable[[], object]) -> str:
    try:
        return f"it goes on: {step()!r}"
    except LeaseLost as error:
        return str(error.reason)


@beside_threads
def test_in_a_copy_of_the_process_the_body_does_not_go_on(injector: FaultInjector) -> None:
    """Beside its parent's it made the same chunks, under no lock."""
    chunks = iter(streaming(iter([b"x"] * 3)))
    assert next(chunks) == b"x"
    assert told_by_child(lambda: reason_of_loss(lambda: next(chunks))) == "forked"
    assert list(chunks) == [b"x", b"x"]
    assert is_free()


@beside_threads
async def test_in_a_copy_of_the_process_an_asynchronous_one_does_not_either(injector: FaultInjector) -> None:
    chunks = aiter(await astreaming(Body().achunks()))
    assert await anext(chunks) == b"x"

    def step() -> None:
        coroutine: Any = chunks.__anext__()
        for _ in range(3):  # to close the body takes its turns of the loop, which is not here
            coroutine.send(None)

    assert told_by_child(lambda: reason_of_loss(step)) == "forked"
    assert [chunk async for chunk in chunks] == [b"x", b"x"]
    assert is_free()


@pytest.mark.usefixtures("memory_store")
def test_in_a_copy_of_which_python_is_not_told_it_does_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a fork in C: the thread that renews the lease might ask for the GIL just then."""
    chunks = iter(streaming(iter([b"x"] * 3)))
    assert next(chunks) == b"x"
    pid = os.getpid()
    monkeypatch.setattr(Process, "generation", Process.generation)  # other tests ask whether this is a copy
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: pid + 1)
        assert reason_of_loss(lambda: next(chunks)) == "forked"
    check_process()


def test_an_error_in_the_body_ends_it(injector: FaultInjector) -> None:
    body = Body(ValueError("the body's own"))
    response = streaming(body.chunks())
    with pytest.raises(ValueError, match="the body's own"):
        list(response)
    assert is_free()
    response.close()
    assert body.depths[-1] == 1
    assert injector.calls.count("release") == 1


async def test_an_error_in_the_body_ends_it_async(injector: FaultInjector) -> None:
    body = Body(ValueError("the body's own"))
    response = await astreaming(body.achunks())
    with pytest.raises(ValueError, match="the body's own"):
        [chunk async for chunk in response]
    assert is_free()
    response.close()
    assert body.depths[-1] == 1
    assert injector.calls.count("release") == 1


class Broken:
    """A body that fails, and so does its closing."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Broken:
        return self

    def __next__(self) -> bytes:
        raise ValueError("the body's own")

    def close(self) -> None:
        self.closed += 1
        raise OSError("the file is gone")


class ABroken:
    def __init__(self) -> None:
        self.closed = 0

    def __aiter__(self) -> ABroken:
        return self

    async def __anext__(self) -> bytes:
        raise ValueError("the body's own")

    async def aclose(self) -> None:
        self.closed += 1
        raise OSError("the file is gone")


@pytest.mark.parametrize("in_request", [False, True], ids=["bare", "in its request"])
def test_the_error_of_a_body_wins_over_that_of_its_closing(injector: FaultInjector, in_request: bool) -> None:
    body = Broken()
    response = streaming(body)
    if in_request:
        send_in_request(response)
    with pytest.raises(ValueError, match="the body's own") as caught:
        list(response)
    response.close()  # with what is closed already, and does not fail again
    assert "the file is gone" in str(caught.value.__notes__)
    assert (body.closed, is_free()) == (1, True)


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "without a lock"])
@pytest.mark.parametrize("in_request", [False, True], ids=["bare", "in its request"])
async def test_the_error_of_a_body_wins_over_that_of_its_closing_async(
    injector: FaultInjector, locked: bool, in_request: bool
) -> None:
    body = ABroken()
    response = await astreaming(body) if locked else StreamingHttpResponse(body)
    if in_request:
        send_in_request(response)
    with pytest.raises(ValueError, match="the body's own") as caught:
        [chunk async for chunk in response]
    response.close()
    if locked or in_request:
        assert "the file is gone" in str(caught.value.__notes__)
        assert body.closed == 1
    assert is_free()


async def test_the_error_of_a_closing_is_told_where_there_is_no_other() -> None:
    class Endless(ABroken):
        async def __anext__(self) -> bytes:
            return b"x"

    response = StreamingHttpResponse(Endless())
    send_in_request(response)
    chunks: Any = aiter(response._iterator)  # type: ignore[attr-defined]
    assert await anext(chunks) == b"x"
    with pytest.raises(OSError, match="the file is gone"):
        await chunks.aclose()


async def told(close: Callable[[], Coroutine[Any, Any, None]], begun: threading.Event) -> None:
    begun.set()
    await close()


async def beside(close: Callable[[], Coroutine[Any, Any, None]], begun: threading.Event) -> None:
    """The same in the event loop of another thread."""
    await asyncio.to_thread(asyncio.run, told(close, begun))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in its loop", "in another loop"])
async def test_who_closes_a_body_that_is_being_closed_waits_for_its_end(
    injector: FaultInjector, elsewhere: bool
) -> None:
    """In another loop it was never woken. One that gives up frees no lock of a body that still runs."""
    closing, may_end = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"x"
        finally:
            closing.set()
            await may_end.wait()

    response = await astreaming(chunks())
    body: Any = response._iterator  # type: ignore[attr-defined]
    assert await anext(body) == b"x"
    first = asyncio.create_task(body.aclose())
    await closing.wait()
    given_up = asyncio.create_task(body.aclose())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    begun = threading.Event()
    second = asyncio.create_task(beside(body.aclose, begun) if elsewhere else told(body.aclose, begun))
    await until(begun.is_set)
    done, _ = await asyncio.wait([first, second], timeout=0.05)
    assert (done, is_free()) == (set(), False)
    may_end.set()
    await asyncio.wait_for(asyncio.gather(first, second), 20)
    assert is_free()


class _HeldRelease(FaultInjector):
    """A store whose releases are on their way until ``go``."""

    def __init__(self) -> None:
        super().__init__(registry().store("default"))
        self.sent, self.go = asyncio.Event(), asyncio.Event()

    async def send(self, runtime: Any, verb: str, send: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if verb == "release":
            self.sent.set()
            await self.go.wait()
        return await super().send(runtime, verb, send, args)


class ARaising(ABroken):
    """Its step goes as it is told, and so does its closing."""

    def __init__(self, step: Exception | None, closing: Exception | None) -> None:
        super().__init__()
        self._step, self._closing = step, closing

    async def __anext__(self) -> bytes:
        if self._step:
            raise self._step
        return b"x"

    async def aclose(self) -> None:
        self.closed += 1
        if self._closing:
            raise self._closing


@pytest.mark.parametrize("fate", ["is released", "fails", "is cancelled"])
@pytest.mark.parametrize("closing", [None, OSError("the closing's")], ids=["closes", "does not close"])
@pytest.mark.parametrize(
    "step", [None, ValueError("the step's"), StopAsyncIteration()], ids=["closed", "failed", "at its end"]
)
@pytest.mark.usefixtures("memory")
async def test_who_closes_a_body_waits_until_its_lock_is_free(
    step: Exception | None, closing: Exception | None, fate: str
) -> None:
    """Whatever ends the body, and whatever becomes of its end: what comes after the close may want the same lock."""
    store = _HeldRelease()
    steps = ARaising(step, closing)
    body: Any = (await astreaming(steps))._iterator  # type: ignore[attr-defined]
    first = asyncio.create_task(anext(body) if step else body.aclose())
    await store.sent.wait()
    second = asyncio.create_task(body.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    waits = not second.done()  # asserted when nothing is held up any more: the end of the loop would wait for it
    if fate == "fails":
        store.lose("release", "request", "request")
    elif fate == "is cancelled":
        first.cancel()
        await asyncio.sleep(0)
    store.go.set()
    async with asyncio.timeout(20):
        heard: tuple[Any, Any] = await asyncio.gather(first, second, return_exceptions=True)
    assert waits
    if fate != "is cancelled":
        assert isinstance(heard[0], type(step or closing))
    assert (steps.closed, is_free()) == (1, fate != "fails")
    with pytest.raises(StopIteration):  # without a turn of the loop
        body.aclose().send(None)


def test_a_response_that_is_closed_ends_it(injector: FaultInjector) -> None:
    body = Body()
    response = streaming(body.chunks())
    next(iter(response))
    response.close()
    assert is_free()
    assert body.depths == [2, 1]
    # Counted from the close: one round trip.
    assert [call for call in injector.calls if call in ("acquire", "release")] == ["acquire", "release"]


async def test_a_response_that_is_closed_ends_it_async(injector: FaultInjector) -> None:
    """Django closes a response in a thread, whose loop has to close an asynchronous body."""
    body = Body()
    response = await astreaming(body.achunks())
    await anext(aiter(response))
    from asgiref.sync import sync_to_async

    await sync_to_async(response.close)()
    assert is_free()
    assert body.depths == [2, 1]
    assert injector.calls.count("release") == 1


async def test_a_response_that_is_closed_in_its_loop_ends_it(injector: FaultInjector) -> None:
    body = Body()
    response = await astreaming(body.achunks())
    await anext(aiter(response))
    response.close()
    await until(is_free)
    assert body.depths == [2, 1]
    assert injector.calls.count("release") == 1


def exports() -> Callable[[], StreamingHttpResponse]:
    """A view that is done once, and streams."""
    view = once(key="sent", keep=60)(lambda request: StreamingHttpResponse(Body().chunks()))
    return lambda: view(RequestFactory().get("/"))


def test_what_is_sent_to_its_last_byte_is_done() -> None:
    """Whoever asked again after a client had gone was told that it was done."""
    export = exports()
    broken_off = export()
    next(iter(broken_off))
    broken_off.close()
    dropped = export()
    assert REPLAYED not in dropped.headers, "the client had gone"
    del dropped
    gc.collect()
    eventually(is_free, "it is given back")
    sent = export()
    assert REPLAYED not in sent.headers, "nobody has sent it"
    assert b"".join(sent) == b"xxx"
    sent.close()
    assert export().headers[REPLAYED] == "true"


async def test_what_is_sent_to_its_last_byte_is_done_async() -> None:
    @once(key="sent in a loop", keep=60)
    async def export(request: HttpRequest) -> Any:  # annotated, it would be refused
        return StreamingHttpResponse(Body().achunks())

    broken_off = await export(RequestFactory().get("/"))
    await anext(aiter(broken_off))
    broken_off.close()
    await until(is_free)
    sent = await export(RequestFactory().get("/"))
    assert REPLAYED not in sent.headers, "the client had gone"
    assert [chunk async for chunk in sent] == [b"x"] * 3
    assert (await export(RequestFactory().get("/"))).headers[REPLAYED] == "true"


def test_a_file_that_the_server_sends_is_done_when_it_is_closed() -> None:
    export = once(key="file", keep=60)(lambda request: FileResponse(io.BytesIO(b"xxx")))
    export(RequestFactory().get("/")).close()
    assert export(RequestFactory().get("/")).headers[REPLAYED] == "true"


@pytest.mark.parametrize("body", [[], [b"x"], iter([b"x"])])
def test_a_response_that_nobody_reads_ends_with_its_close(injector: FaultInjector, body: Any) -> None:
    response = streaming(body)
    assert not is_free()
    response.close()
    assert is_free()


async def test_a_task_that_is_cancelled_in_the_body_ends_it(injector: FaultInjector) -> None:
    ended = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            ended.append(current_lease() is not None)

    response = await astreaming(endless())

    async def send() -> None:
        async for _ in response:
            begun.set()

    begun = asyncio.Event()
    task = asyncio.create_task(send())
    await begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_free()
    assert ended == [True]
    assert injector.calls.count("release") == 1


def test_a_response_that_is_dropped_ends_it(injector: FaultInjector) -> None:
    """A middleware that answers something else in its place closes nothing. The lease would live for a minute."""
    response = streaming(Body().chunks())
    assert not is_free()
    del response
    gc.collect()
    eventually(is_free, "the lock is free", 10)
    assert injector.calls.count("release") == 1


def test_a_body_that_goes_on_in_another_response_keeps_it(injector: FaultInjector) -> None:
    body = Body()
    first = streaming(body.chunks())
    second = StreamingHttpResponse(first._iterator)  # type: ignore[attr-defined]
    del first
    gc.collect()
    chunks = iter(second)
    next(chunks)
    registry_has_looked()
    assert not is_free()
    assert list(chunks) == [b"x"] * 2
    assert is_free()
    assert body.depths == [2, 2, 2, 1]


def registry_has_looked() -> None:
    """The watchdog has gone round once: what it is told of in order, it looks at in order."""
    context = Context()
    response = context.run(distributed_lockable(key="other", expire=60)(lambda: StreamingHttpResponse(iter([]))))
    del response
    gc.collect()
    eventually(lambda: len(names()) == 1, "the watchdog has looked", 10)


def names() -> list[str]:
    from distlock_web.ops.held_locks import list_all

    return [row.lock.name for row in list_all(registry()).rows]


@pytest.mark.timing
@pytest.mark.slow
def test_a_lease_that_is_nearly_over_at_the_return_is_renewed_at_once(injector: FaultInjector) -> None:
    def late(request: HttpRequest) -> StreamingHttpResponse:
        threading.Event().wait(0.9)
        return StreamingHttpResponse(iter([b"x"]))

    response = distributed_lockable(key="export", expire=1.2)(late)(RequestFactory().get("/"))
    before = the_lock()
    threading.Event().wait(1.2)
    after = the_lock()
    assert before is not None
    assert after is not None
    assert after.fence == before.fence
    assert list(response) == [b"x"]


def test_a_body_keeps_the_context_of_others(injector: FaultInjector) -> None:
    """A token of somebody's variable is good in one context only, and a body may have begun before the return."""
    variable = ContextVar("variable", default="outside")

    def body() -> Iterator[str]:
        token = variable.set("inside")
        yield variable.get()
        variable.reset(token)
        yield variable.get()

    def view() -> StreamingHttpResponse:
        chunks = body()
        next(chunks)
        return StreamingHttpResponse(chunks)

    assert list(distributed_lockable(key="export")(view)()) == [b"outside"]


def test_until_return_ends_it_with_the_view(injector: FaultInjector) -> None:
    response = streaming(Body().chunks(), until="return")
    assert is_free()
    response.close()


def test_a_view_that_was_let_through_streams(injector: FaultInjector) -> None:
    def chunks() -> Iterator[str]:
        lease = current_lease()
        yield str(lease is not None and lease.acquired)

    injector.cut()
    response = streaming(chunks(), on_backend_error="open")
    injector.mend()
    assert list(response) == [b"False"]
    response.close()
    assert "release" not in injector.calls


# Lost in the middle ---------------------------------------------------------------------------------------------------


def take_away() -> None:
    held = the_lock()
    assert held is not None
    assert revoke(held.name, held.fence)


HOW_IT_IS_LOST = ["revoked", pytest.param("expired", marks=pytest.mark.timing)]


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
def test_a_loss_breaks_the_body(injector: FaultInjector, how: str) -> None:
    options = {"expire": 4.0} if how == "revoked" else {"expire": 0.3, "renew_for": 0.1}
    chunks = iter(streaming(itertools.repeat(b"x"), **options))
    next(chunks)
    if how == "revoked":
        take_away()
    with lock("export", expire=60, wait=10) as second:
        with pytest.raises(LeaseLost):
            eventually(lambda: next(chunks) and False, "the loss is known")
        second.raise_if_lost()
        assert not is_free()
    assert injector.calls.count("release") == 1  # the second holder's


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
async def test_a_loss_breaks_the_body_async(injector: FaultInjector, how: str) -> None:
    ended = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.001)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    options = {"expire": 4.0} if how == "revoked" else {"expire": 0.3, "renew_for": 0.1}
    chunks = aiter(await astreaming(endless(), **options))
    await anext(chunks)
    if how == "revoked":
        take_away()
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(30):
            async for _ in chunks:
                pass
    assert ended  # now, and not when garbage is collected
    await until(is_free)


def test_a_loss_after_the_last_chunk_is_no_clean_end(injector: FaultInjector) -> None:
    chunks = iter(streaming(iter([b"x"])))
    next(chunks)
    take_away()
    with pytest.raises(LeaseLost, match="released by force"):
        next(chunks)


@pytest.mark.parametrize("policy", ["warn", "callable"])
def test_a_loss_as_on_lost_says(injector: FaultInjector, caplog: pytest.LogCaptureFixture, policy: str) -> None:
    told: list[Any] = []
    chunks = iter(streaming(iter([b"x"] * 3), expire=2.0, on_lost="warn" if policy == "warn" else told.append))
    next(chunks)
    take_away()
    eventually(lambda: told or policy == "warn", "the callable is told")
    with caplog.at_level(logging.WARNING, "distlock_web"):
        assert list(chunks) == [b"x"] * 2
    assert "released by force" in caplog.text
    assert [lease.state for lease in told] == ([] if policy == "warn" else ["lost"])


async def test_a_loss_cancels_the_task_that_sends(injector: FaultInjector) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async def serve() -> None:
        async for _ in await astreaming(endless(), expire=2.0, on_lost="cancel"):
            take_away()

    with pytest.raises(LeaseLost, match="released by force"):
        await asyncio.wait_for(asyncio.create_task(serve()), 30)


def test_nobody_is_told_when_a_closed_response_had_lost_it(
    injector: FaultInjector, caplog: pytest.LogCaptureFixture
) -> None:
    response = streaming(Body().chunks())
    next(iter(response))
    take_away()
    with caplog.at_level(logging.WARNING, "distlock_web"):
        response.close()
    assert "ended without its lock" in caplog.text


async def until(condition: Callable[[], object]) -> None:
    """Wait in the loop, which has to do it."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what the store knows sets no event
            await asyncio.sleep(0.005)
