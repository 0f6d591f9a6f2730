"""What Starlette offers to locks, and FastAPI with it: its requests, its responses, its streams, its 404."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from anyio import CancelScope
from starlette.exceptions import HTTPException
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request, cookie_parser
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Send

from ..locks.hooks import Answer, Args, Kwargs
from ..web import asgi
from ..web.asked import CREDENTIALS, content_of, logged_in
from ..web.framework import Given
from ..web.kept_answers import Replay, is_given, not_kept
from ..web.streaming import LockedAsyncBody, StreamLock
from .views import functions_of, refuse_registered, route_of, with_those_above


class Answered(HTTPException):
    """The first answer again, of an endpoint that returned a value: decorators above it expect no response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code, "")  # not the status' phrase: not each has one
        self.response = response


class StarletteIntegration(asgi.ASGIIntegration):
    """One for all apps of the process: it looks at the request that is running."""

    streaming = (StreamingResponse, FileResponse)
    check_function = staticmethod(refuse_registered)

    def views_of(self, request: asgi.Request) -> Iterable[Any]:
        return functions_of(request.scope.get("endpoint"))

    def called_view(self, args: Args, kwargs: Kwargs, locked: Any) -> Request | None:
        request = super().called_view(args, kwargs, locked)
        return None if request is None else Request(request.scope)

    def request(self) -> Request:
        return Request(asgi.running_request().scope)

    def no_such_page(self) -> HTTPException:
        return HTTPException(404)

    def is_stream(self, result: Any, locked: object) -> bool:
        # Not by its class alone: sse-starlette's is none of Starlette's streams.
        is_body_to_come = isinstance(result, Response) and hasattr(result, "body_iterator")
        return is_body_to_come or super().is_stream(result, locked)

    def answer(self, result: Any, request: Any | None, locked: Any) -> Given | None:
        if not isinstance(result, Response):
            return None
        body = None if self.is_stream(result, locked) else bytes(result.body)
        return Given(result.status_code, result.headers.items(), body)

    def status_of(self, result: Any, args: Args, kwargs: Kwargs, locked: Any) -> int | None:
        said = super().status_of(result, args, kwargs, locked)
        # FastAPI's, to set it on.
        given = [each.status_code for each in (*args, *kwargs.values()) if isinstance(each, Response)]
        return said or next(filter(None, given), None) or getattr(route_of(self.request().scope), "status_code", None)

    async def kept_of(self, result: Any, request: Any, locked: Any) -> dict[str, Any] | None:
        if locked.until is not None and not isinstance(result, Response) and is_given(locked, Response):  # FastAPI's
            return not_kept(locked.name, "its headers are on the response that the endpoint was given")
        return await super().kept_of(result, request, locked)

    def replayed(self, kept: dict[str, Any], request: Any, locked: Any) -> Answer:
        answer = super().replayed(kept, request, locked)
        # Where nothing stands above it FastAPI takes the response for the value, and dependencies see no exception.
        is_endpoint = getattr(request.scope.get("endpoint"), "__wrapped__", None) is locked.function
        if kept.get("is_value") and not is_endpoint:
            raise Answered(answer.value)
        return answer

    def respond(self, answer: Replay, request: Any, locked: Any) -> Response:
        response = Response(answer.body, answer.status)
        own = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
        length = [each for each in response.raw_headers if each[0] == b"content-length"]
        response.raw_headers = [*own, *length]
        return response

    def send_under_lock(self, result: Any, lock: StreamLock) -> Any:
        if isinstance(result, FileResponse):
            return asgi.sent_whole(result, lock)
        steps = result.body_iterator
        result.body_iterator = body = asgi.locked_body(lock, aiter(steps), *_closers(steps))
        if isinstance(result, StreamingResponse):
            result.stream_response = partial(_stream, result.stream_response, body)  # type: ignore[method-assign]
        return result

    def user_of(self, request: asgi.Request) -> Iterator[str]:
        user = request.scope.get("user")  # AuthenticationMiddleware's
        if (known := logged_in(user, _identity)) is not None:
            yield from known
            return
        session, cookies = request.scope.get("session"), cookie_parser(request.headers.get("Cookie") or "")
        if session is not None:  # its cookie is signed anew with each answer
            cookies = {name: value for name, value in cookies.items() if name not in _session_cookies(request)}
            yield from ("session", content_of(session.items()))
        yield from (request.headers.get(name) or "" for name in (*CREDENTIALS, *_security_headers(request)))
        yield content_of(cookies.items())


async def _stream(stream: Callable[[Send], Awaitable[None]], body: LockedAsyncBody[Any], send: Send) -> None:
    """Close the body before the background task of a client that has gone, which may want the same lock."""
    try:
        await stream(send)
    finally:
        with CancelScope(shield=True):
            await body.aclose()


def _security_headers(request: asgi.Request) -> list[str]:
    """Those that FastAPI's ``APIKeyHeader`` knows a caller of this endpoint by, here or in a dependency."""
    names, places = set[str](), [getattr(route_of(request.scope), "dependant", None)]
    while places:
        if (each := places.pop()) is not None:
            model: Any = getattr(each.call, "model", None)
            if getattr(getattr(model, "in_", None), "value", None) == "header":
                names.add(model.name)
            places += each.dependencies
    return sorted(names)


def _identity(user: Any) -> object:
    for name in ("identity", "id", "pk", "username"):
        with suppress(AttributeError, NotImplementedError):
            if (found := getattr(user, name)) not in (None, ""):
                return found
    return None


def _session_cookies(request: asgi.Request) -> set[str]:
    stack: list[Any] = [each for app in with_those_above(request.scope["app"]) for each in app.user_middleware]
    found = [each for each in stack if inspect.isclass(each.cls) and issubclass(each.cls, SessionMiddleware)]
    return {each.kwargs.get("session_cookie", "session") for each in found}


def _closers(steps: Any) -> list[Callable[[], object]]:
    """Starlette leaves the end of a plain generator to the garbage collector, and with it its ``finally``."""
    frame = steps.ag_frame if isinstance(steps, AsyncGenerator) and hasattr(steps, "ag_frame") else None
    plain = frame.f_locals.get("iterator") if frame is not None and "anyio" in frame.f_globals else None
    return [plain.close] if inspect.isgenerator(plain) else []
