"""The request id around a whole request: as WSGI, so that it covers error responses and the bodies of streamed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.request_id import accept, bind, clear, current_origin
from ..locks.scope import Chain, swap_scopes
from .state import AppState, serving

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

T = TypeVar("T")


class RequestIDMiddleware:
    """An app's ``wsgi_app``, with the request id bound while it runs and sent back with every response."""

    def __init__(self, wsgi_app: WSGIApplication, state: AppState) -> None:
        self._wsgi_app = wsgi_app
        self._state = state
        self._key = "HTTP_" + state.header.upper().replace("-", "_")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = RequestScope(accept(environ.get(self._key)), _path(environ), self._state)
        body = request.during(partial(self._wsgi_app, environ, partial(request.start, start_response)))
        wrapper = environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(body, wrapper):
            return body  # a file: the server recognises it by its class and sends it without reading it
        return ScopedBody(body, request)


class RequestScope:
    """One request's identity."""

    __slots__ = ("_chain", "_id", "_path", "_state")

    def __init__(self, request_id: str, path: str, state: AppState) -> None:
        self._id = request_id
        self._path = path
        self._state = state
        self._chain: Chain = ()

    def during(self, step: Callable[[], T]) -> T:
        """Run one step of the request under its id.

        What was bound before comes back: an app may serve a response of another app, and a test may call both.
        """
        outer, outer_app, outer_chain = current_origin(), serving.get(), swap_scopes(self._chain)
        bind(self._id, self._path)
        serving.set(self._state)
        try:
            return step()
        finally:
            self._chain = swap_scopes(outer_chain)
            serving.set(outer_app)
            if outer is None:
                clear()
            else:
                bind(outer.request_id, outer.path)

    def start(self, start_response: StartResponse, status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        """Send the id back, unless the app has said its own."""
        own = self._state.header.lower()
        if all(name.lower() != own for name, _ in headers):
            headers = [*headers, (self._state.header, self._id)]
        return start_response(status, headers, *exc_info)


class ScopedBody:
    """A response's body. Each step is bound on its own, for nobody promises the server's thread, nor that it closes."""

    __slots__ = ("_body", "_chunks", "_request")

    def __init__(self, body: Iterable[bytes], request: RequestScope) -> None:
        self._body = body
        self._chunks: Iterator[bytes] | None = None
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._chunks is None:
            self._chunks = self._request.during(self._body.__iter__)
        return self._request.during(self._chunks.__next__)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            self._request.during(close)


def _path(environ: WSGIEnvironment) -> str:
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    # WSGI hands over bytes in the clothes of latin-1 text.
    return f"{environ['REQUEST_METHOD']} {path.encode('latin-1').decode('utf-8', 'replace')}"
