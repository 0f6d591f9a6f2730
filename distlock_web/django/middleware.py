"""A request id for every request, and an answer for those that cannot run under their lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.request import HttpHeaders
from django.http.response import HttpResponseBase

from ..core import request_id
from ..core.errors import BackendUnavailable, ConfigurationError, LockBusy
from ..locks.scope import swap_scopes
from . import responses
from .locked_views import SKIP_REMEDY, locked_functions, name_of, skips


class RequestIDMiddleware:
    """Give every request an id, ``request.request_id``: from its ``Req-Id`` header if that is one, else a fresh one.

    The id goes into every log record (``RequestIDFilter``), every lock's holder, and back to the client. A view whose
    lock is busy is answered with 409 and ``Retry-After``, one whose store does not answer with 503.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.asynchronous = iscoroutinefunction(get_response)
        if self.asynchronous:
            markcoroutinefunction(self)
            # Django would send a plain function to a thread and back, for every request.
            self.process_view = self._aprocess_view  # type: ignore[method-assign]

    def __call__(self, request: HttpRequest) -> Any:
        if self.asynchronous:
            return self.__acall__(request)
        outer, header = swap_scopes(), _begin(request)
        try:
            response: HttpResponseBase = self.get_response(request)
            response[header] = request.request_id  # type: ignore[attr-defined]
            return response
        finally:
            request_id.clear()
            swap_scopes(outer)

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        outer, header = swap_scopes(), _begin(request)
        try:
            response: HttpResponseBase = await self.get_response(request)
            response[header] = request.request_id  # type: ignore[attr-defined]
            return response
        finally:
            request_id.clear()
            swap_scopes(outer)

    def process_view(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Refuse a view that would answer a busy lock with None, which is a 500 of the least helpful kind."""
        if any(skips(guard) for guard in locked_functions(view, request.method)):
            raise ConfigurationError(
                f'The view {name_of(view)} has on_busy="skip", which returns None when the lock is busy. {SKIP_REMEDY}'
            )

    async def _aprocess_view(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return RequestIDMiddleware.process_view(self, request, view, args, kwargs)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """The answer to a lock that is busy or a store that is away; every other exception is Django's business."""
        if not isinstance(error, (LockBusy, BackendUnavailable)):
            return None
        return responses.refused(error, request)  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def header_and_key() -> tuple[str, str]:
    """The header of the request id, and its key in ``request.META``. Kept, for every request asks; see ``apps.py``."""
    header: str = getattr(settings, "DISTLOCK_REQUEST_ID_HEADER", request_id.DEFAULT_HEADER)
    return header, HttpHeaders.to_wsgi_name(header)


def _begin(request: HttpRequest) -> str:
    """Bind the request's id to the running context. Returns the name of the header that carries it."""
    header, key = header_and_key()
    ident = request_id.accept(request.META.get(key))
    request.request_id = ident  # type: ignore[attr-defined]
    request_id.bind(ident, f"{request.method} {request.path}")
    return header
