"""ASGI, under whatever framework: the bounds of a request, its body for ``once``, and the end of what it left locked.

Two middlewares. :class:`RequestMiddleware` is outermost: the request id in and out, the stores of the app, and the
release of what a response was sent under, however that ended. :class:`AnswerMiddleware` is next to the views: what a
view with ``once`` has answered is recorded before its first byte goes out, as the framework has made it.
:class:`ASGIIntegration` is for the hooks: a framework's own says which function a request was routed to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from ..core.errors import ConfigurationError, KeyUnavailable
from ..core.registry import Registry
from ..core.request_id import DEFAULT_HEADER
from ..core.runtime import in_event_loop
from ..locks.hooks import Answer, Args, Kwargs
from ..locks.lease import Lease
from .asgi_bodies import FormPieces, ReadAhead
from .asked import CREDENTIALS, MAX_COMPARED, digest_of, read_before, whole_body
from .framework import Given, RefusedRequest, WebIntegration, is_hidden_view, is_view
from .kept_answers import MAX_KEPT, REPLAYED, keep
from .request_ids import WebRequestBounds, header_name, proxy_header
from .streaming import LockedAsyncBody, StreamLock
from .success import is_failure

T = TypeVar("T")
ASGIScope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[ASGIScope, Receive, Send], Awaitable[None]]

#: The longest that a thread waits for the body of a request: a client that sends it in drops has the thread meanwhile.
READ_SECONDS = 30.0
_HOW = "it through the framework"

#: The HTTP request that runs here.
running: ContextVar[Request | None] = ContextVar("distlock_asgi_request", default=None)
#: The stores of the app that runs here, also at its start and in a websocket.
serving: ContextVar[Registry | None] = ContextVar("distlock_asgi_stores", default=None)


class ASGIHeaders:
    """A request's headers, by name. Of several of one name all count: HTTP/2 may send each cookie by itself."""

    def __init__(self, scope: ASGIScope) -> None:
        self._found: dict[bytes, bytes] = {}
        for given, value in scope["headers"]:
            name = given.lower()
            between = b"; " if name == b"cookie" else b", "
            self._found[name] = self._found[name] + between + value if name in self._found else value

    def __getitem__(self, name: str) -> str:
        if (value := self.get(name)) is None:
            raise KeyError(name)
        return value

    def get(self, name: str, /) -> str | None:
        value: bytes | None = self._found.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")


class Request:
    """One HTTP request: what is asked of it here, and what its view has left locked."""

    def __init__(self, scope: ASGIScope, receive: Receive, keeps_body: Callable[[ASGIScope], bool]) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers = ASGIHeaders(scope)
        self.loop = asyncio.get_running_loop()
        self.replayed = False  #: its view has answered again
        self.view_status: int | None = None  #: of what its view has returned, if the view has said one
        self.unrecorded: list[Unrecorded] = []  #: its view has been done once, and that is not recorded yet
        self.bodies: list[LockedAsyncBody[Any]] = []  #: sent under a lock
        self.locks: list[StreamLock] = []  #: of a response that the framework sends by itself
        self._receive = receive
        self._keeps_body = keeps_body
        self._read: list[bytes] = []
        self._length = 0
        self._form: FormPieces | None = None  #: known when its first message has come
        self._ahead = ReadAhead()
        self._later: deque[Message] = deque()  #: read ahead, too: what comes after that
        self._begun = self._ended = self._gone = self._lost = False
        self._reading = asyncio.Lock()

    @property
    def media_type(self) -> str:
        return (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()

    # The body ---------------------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """What the app gets: first what was read ahead of it."""
        async with self._reading:  # a framework may read at the same time as body() does: each chunk in its order
            if self._ahead:
                await asyncio.sleep(0)  # a long body, all of which is here, would keep the event loop from all others
                chunk = self._ahead.take()
                return {"type": "http.request", "body": chunk, "more_body": bool(self._ahead) or not self._ended}
            return self._later.popleft() if self._later else await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            chunk = message.get("body", b"")
            if not self._begun:
                self._begin()
            self._begun, self._ended = True, not message.get("more_body", False)
            self._length += len(chunk)
            if self._form is not None:
                self._form.add(chunk)
            elif not self._lost and self._length <= MAX_COMPARED:
                self._read.append(chunk)
            else:
                self._read.clear()
        else:
            self._gone = True
        return message

    def _begin(self) -> None:
        # Asked late: a framework reads when it has routed the request, and so knows whether its view has once.
        if self._keeps_body(self.scope):
            self._form = self._new_form()
        else:
            self._lost = True

    def _new_form(self) -> FormPieces | None:
        return FormPieces.of(self.headers.get("Content-Type") or "")

    async def _read_ahead(self) -> None:
        message = await self._next()
        if chunk := message.get("body"):
            self._ahead.put(chunk)
        elif self._gone or (self._ended and not self._ahead):
            self._later.append(message)

    async def body(self) -> bytes | int | str:
        """The body, which the view still can read; of a form a digest of what it says, however long it is.

        Of another one that is too long to be compared, its length.
        """
        said, is_form = self.headers.get("Content-Length") or "", self._new_form() is not None
        if said.isdecimal() and int(said) > MAX_COMPARED and not is_form:
            return int(said)
        while not self._ended and (self._form is not None or self._length <= MAX_COMPARED):
            async with self._reading:
                if not self._ended and not self._gone:  # else the app has read it meanwhile
                    await self._read_ahead()
            if self._gone and not self._ended:
                raise KeyUnavailable("The client has gone before its request was whole.")
        self._ahead.check()
        if self._lost and self._length:
            raise read_before(_HOW)
        if self._form is not None:
            return self._form.digest()
        if self._length > MAX_COMPARED:
            raise KeyUnavailable(f"A body of more than {MAX_COMPARED:,} bytes has to say how long it is.")
        return b"".join(self._read)

    def body_now(self) -> bytes | int | str:
        """The same for a view in a thread: the event loop reads."""
        if not in_event_loop():
            reading = asyncio.run_coroutine_threadsafe(self.body(), self.loop)
            try:
                return reading.result(READ_SECONDS)
            except TimeoutError as error:
                reading.cancel()
                raise KeyUnavailable(f"The request was not whole within {READ_SECONDS:g} s.") from error
        raise ConfigurationError("once on a plain function in an event loop cannot read the body: make it async.")

    # Its end ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """The response was sent, or broken off: nothing stays locked, whatever fails."""
        async with AsyncExitStack() as stack:
            for body in self.bodies:
                stack.push_async_callback(body.aclose)
            for lock in self.locks:
                stack.push_async_callback(lock.aclose)
            for done in self.unrecorded:
                stack.push_async_callback(done.fail, RuntimeError("there was no answer"))
            stack.callback(self._ahead.close)


class Unrecorded:
    """What a view with ``once`` has done: its lock is held until its answer is known, and recorded."""

    def __init__(self, lock: StreamLock, function: str, *, is_value: bool, approved: int | None) -> None:
        """``approved``: the status that ``success=`` has taken for one of work that is done."""
        self._lock = lock
        self._function = function
        self._is_value = is_value
        self._approved = approved

    async def record(self, status: int, headers: list[tuple[str, str]], body: bytes | None) -> None:
        """The answer, as it will be sent. ``LeaseLost`` if the lock is gone."""
        # Of another status than the view's nothing was known at its return: what comes after it has failed.
        if status != self._approved and is_failure(status, Given(status, headers).location, is_for_others=True):
            self._lock.leave_no_record()
        else:
            kept = keep(self._function, status, headers, body)
            self._lock.keep({**kept, "is_value": self._is_value})
        await self._lock.aend()

    async def fail(self, error: BaseException) -> None:
        """There is no answer: what comes after the view has failed, such as the commit of a session."""
        self._lock.leave_no_record()
        await self._lock.aend(error)


class RequestMiddleware:
    """The outermost: a request id for every request, in and out; the app's stores; and the end of its locks."""

    def __init__(
        self,
        app: App,
        *,
        registry: Registry | None = None,
        header: str | None = None,
        user: Callable[[ASGIScope], object] | None = None,
        route: Callable[[ASGIScope], str] = lambda scope: "",
        keeps_body: Callable[[ASGIScope], bool] = lambda scope: True,
    ) -> None:
        self._app = app
        self._registry = registry
        self._header = header_name(header or DEFAULT_HEADER, "header")
        self._proxy = proxy_header(is_chosen=header is not None)
        self._user = user
        self._route = route
        self._keeps_body = keeps_body

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        outer = serving.get()
        serving.set(self._registry)
        try:
            if scope["type"] == "lifespan":
                await self._live(scope, receive, send)
            elif scope["type"] == "http":
                await self._answer(scope, receive, send)
            else:
                await self._within(scope, receive, send, self._bounds(lambda: scope, ASGIHeaders(scope)))
        finally:
            serving.set(outer)

    async def _live(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if self._registry is not None:
                self._registry.close()

    async def _answer(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        request, outer = Request(scope, receive, self._keeps_body), running.get()
        bounds = self._bounds(lambda: request.scope, request.headers)
        name = self._header.lower().encode()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                value = bounds.settle().encode()
                # Unless the app has said its own, or other code has named the request.
                if not bounds.is_named_elsewhere and all(each.lower() != name for each, _ in headers):
                    headers.append((self._header.encode(), value))
                if request.replayed:
                    headers = [each for each in headers if each[0].lower() != REPLAYED.lower().encode()]
                    headers.append((REPLAYED.encode(), b"true"))
                message = {**message, "headers": headers}
            await send(message)
            if message["type"] in _LAST and not message.get("more_body", False):
                while request.locks:
                    await request.locks.pop().aclose()

        running.set(request)
        try:
            await self._within(scope, request.receive, answer, bounds, request.close)
        finally:
            running.set(outer)

    def _bounds(self, scope: Callable[[], ASGIScope], headers: ASGIHeaders) -> WebRequestBounds:
        """``scope``: asked late, for a middleware may hand on another one (:class:`AnswerMiddleware`)."""
        known = self._user
        user = None if known is None else lambda: known(scope())
        proxy = headers.get(self._proxy) if self._proxy else None
        return WebRequestBounds(headers.get(self._header), lambda: self._route(scope()), user, proxy=proxy)

    async def _within(
        self,
        scope: ASGIScope,
        receive: Receive,
        send: Send,
        bounds: WebRequestBounds,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        outer = bounds.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            try:
                if close is not None:
                    await close()
            finally:
                bounds.leave(outer)


_LAST = ("http.response.body", "http.response.pathsend")


class AnswerMiddleware:
    """Next to the views: an answer of ``once`` is recorded, and its lock released, before its first byte is sent."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        request = running.get()
        if scope["type"] != "http" or request is None:
            await self._app(scope, receive, send)
            return
        # A middleware between the two may have handed on a copy, as ASGI has it: what the framework finds out of the
        # request, such as its endpoint and its user, it writes to this one.
        request.scope = scope
        start: Message | None = None
        pieces: list[Message] = []
        held = bytearray()

        async def record(message: Message) -> None:
            nonlocal start
            if not request.unrecorded:
                await send(message)
            elif message["type"] == "http.response.start":
                start = {**message, "headers": list(message.get("headers", ()))}
            elif start is None:
                await send(message)  # early hints
            else:
                pieces.append({**message})
                body: bytes | None = None
                if message["type"] == "http.response.body":
                    held.extend(message.get("body", b""))
                    if not message.get("more_body", False):
                        body = bytes(held)
                    elif len(held) <= MAX_KEPT:
                        return  # some frameworks send every answer in pieces
                headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
                while request.unrecorded:
                    await request.unrecorded[0].record(start["status"], headers, body)
                    del request.unrecorded[0]
                await send(start)
                for each in pieces:
                    await send(each)

        try:
            await self._app(scope, receive, record)
        except BaseException as error:
            for each in request.unrecorded:
                await each.fail(error)
            raise


def running_request() -> Request:
    if (request := running.get()) is None:
        raise LookupError("no request runs here: is RequestMiddleware around the app?")
    return request


def locked_body(lock: StreamLock, steps: AsyncIterator[T], *closers: Callable[[], object]) -> LockedAsyncBody[T]:
    """A body that runs under the lock. It ends with the request at the latest: if the client goes, and if it fails."""
    body = LockedAsyncBody(lock, steps, *closers)
    if (request := running.get()) is not None:
        request.bodies.append(body)
    return body


def sent_whole(response: T, lock: StreamLock) -> T:
    """A response that the framework sends by itself, such as a file: the lock ends when its last byte is sent."""
    lock.by_server = True
    request = running.get()
    # A middleware may make another response of it, and drop this one while its file is sent. The lock ends when the
    # request is left.
    lock.lives_with(response if request is None else request)
    if request is not None:
        request.locks.append(lock)
    return response


class ASGIIntegration(WebIntegration):
    """What is the same under every ASGI framework. Who is called, and how a response is made, its own class says."""

    def views_of(self, request: Request) -> Iterable[Any]:
        """The function that this request was routed to, or the methods of the class; nothing before it was."""
        endpoint = request.scope.get("endpoint")
        return () if endpoint is None else (endpoint,)

    def user_of(self, request: Request) -> Iterable[str] | str | None:
        """Who is logged in: a text, or several (``user_parts``). None, or nothing but "": no user is known.

        Then what the client has sent says who asks: its credentials and its cookies.
        """
        return None

    def _who(self, request: Request) -> list[str]:
        said = self.user_of(request)
        parts = [said] if isinstance(said, str) else list(said or ())
        # No user is no identity: to all who are not logged in `once` would show what one of them was answered.
        return parts if any(parts) else [request.headers.get(name) or "" for name in (*CREDENTIALS, "Cookie")]

    def request(self) -> object:
        """What ``request`` is in a key, where no argument is called so. ``LookupError``: none of ours runs here."""
        return running_request()

    def variables(self) -> Mapping[str, Callable[[], object]]:
        return {"request": self.request}

    def app_registry(self) -> Registry | None:
        return serving.get()

    def in_request(self) -> bool:
        return running.get() is not None

    def called_view(self, args: Args, kwargs: Kwargs, locked: Any) -> Any | None:
        request = running.get()
        return request if request is not None and self._is_called(request, locked) else None

    def _is_called(self, request: Request, locked: Any) -> bool:
        views = tuple(self.views_of(request))
        return is_view(locked, views) or is_hidden_view(locked, views)

    def stream(self, result: Any, locked: Any, lease: Lease) -> Any | None:
        request = running.get()
        if request is None or self.is_stream(result, locked) or locked.once is None:
            return super().stream(result, locked, lease)
        lock = StreamLock.of_record(lease) if self._is_called(request, locked) else None
        if lock is None:
            return None
        lock.lives_with(request)
        is_value = self.answer(result, request, locked) is None
        approved = None if locked.success is None else request.view_status
        request.unrecorded.append(Unrecorded(lock, locked.name, is_value=is_value, approved=approved))
        return Answer(result)

    async def answer_of(self, result: Any, args: Args, kwargs: Kwargs, locked: Any) -> dict[str, Any] | None:
        request = running.get()
        if request is not None and self._is_called(request, locked):
            request.view_status = self.status_of(result, args, kwargs, locked)
        return await super().answer_of(result, args, kwargs, locked)

    def status_of(self, result: Any, args: Args, kwargs: Kwargs, locked: Any) -> int | None:
        """The status that a view has said, in what it returned or otherwise; None: that is left to the framework."""
        given = self.answer(result, running.get(), locked)
        return None if given is None else given.status

    async def kept_of(self, result: Any, request: Any, locked: Any) -> dict[str, Any] | None:
        if locked.until is None and not self.is_stream(result, locked):
            # Until the response is made: of a process that dies before that nothing is recorded.
            return {"status": 200, "headers": []}
        return await super().kept_of(result, request, locked)

    def replayed(self, kept: dict[str, Any], request: Any, locked: Any) -> Answer:
        asking = running.get()
        assert asking is not None  # noqa: S101 - a view was called
        asking.replayed = True  # marked as it goes out, wherever the response is made
        return super().replayed(kept, request, locked)

    async def who_asks(self, request: Any, args: Args, kwargs: Kwargs, locked: Any) -> str:
        asking = running.get()
        assert asking is not None  # noqa: S101 - a view was called
        body = await asking.body() if locked.asynchronous else asking.body_now()
        scope, headers = asking.scope, asking.headers
        where = (asking.method, headers.get("Host") or "", scope["path"], scope.get("query_string", b""))
        what = ("form", body) if isinstance(body, str) else whole_body(body)
        return digest_of(*self._who(asking), *where, asking.media_type, *what)


def refused_request(request: Request, *, for_programs: bool) -> RefusedRequest:
    """What :func:`~distlock_web.web.framework.refusal` has to know of it."""
    return RefusedRequest(request.method, request.scope["path"], request.headers, request.media_type, for_programs)
