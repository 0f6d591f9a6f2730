"""The request id around a whole request: as WSGI, so that it covers error responses and the bodies of streamed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, g, request

from ..web.request_ids import WebRequestBounds, environ_key, note_route
from .responses import refuse_in_front
from .state import AppState, serving

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

T = TypeVar("T")


class RequestIDMiddleware:
    """An app's ``wsgi_app``, with the request id bound while it runs and sent back with every response."""

    def __init__(self, app: Flask, state: AppState) -> None:
        self._app = app
        self._wsgi_app: WSGIApplication = app.wsgi_app
        self._state = state
        self._first = True
        self._key = environ_key(state.header)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self._first:
            refuse_in_front(self._app)
            self._first = False
        bounds = AppRequestBounds(environ, self._key, self._state)
        body = bounds.run(partial(self._wsgi_app, environ, partial(bounds.start, start_response)))
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(body, wrapper):
            return body  # a file: the server recognises it by its class and sends it without reading it
        return BoundBody(body, bounds)


class AppRequestBounds(WebRequestBounds):
    """A request, and the app that answers it."""

    __slots__ = ("_state",)

    def __init__(self, environ: WSGIEnvironment, key: str, state: AppState) -> None:
        user = None if state.user is None else partial(state.user, request)
        proxy = environ.get(state.proxy) if state.proxy else None
        super().__init__(environ.get(key), user=user, proxy=proxy, named=_named)
        self._state = state

    def run(self, step: Callable[[], T]) -> T:
        """Run one step of the request inside of it. An app may serve a response of another app: both are put back."""
        outer, other_app = self.enter(), serving.get()
        serving.set(self._state)
        try:
            return step()
        finally:
            serving.set(other_app)
            self.leave(outer)

    def start(self, start_response: StartResponse, status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        """Send the id back, unless the app has said its own."""
        request_id, own = self.settle(), self._state.header.lower()
        if not self.is_named_elsewhere and all(name.lower() != own for name, _ in headers):
            headers = [*headers, (self._state.header, request_id)]
        return start_response(status, headers, *exc_info)


def _named() -> object:
    """What other code has called the request where Flask keeps such things: ``g``, Flask-Log-Request-ID or by hand."""
    return (g.get("request_id") or g.get("log_request_id")) if g else None


class BoundBody:
    """A response's body. Each step enters the request again: no server promises its thread, nor that it closes."""

    __slots__ = ("_body", "_chunks", "_request")

    def __init__(self, body: Iterable[bytes], request: AppRequestBounds) -> None:
        self._body = body
        self._chunks: Iterator[bytes] | None = None
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._chunks is None:
            self._chunks = self._request.run(self._body.__iter__)
        return self._request.run(self._chunks.__next__)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            self._request.run(close)


def note_request(endpoint: str | None, values: object) -> None:
    """Flask has routed the request: its ``url_value_preprocessor``, which comes before all ``before_request``."""
    if request.url_rule is not None:
        note_route(request.method, request.root_path + request.url_rule.rule)
