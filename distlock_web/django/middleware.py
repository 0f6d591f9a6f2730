"""A request id for every request, and an answer for those that cannot run under their lock."""

from __future__ import annotations

import re
from asyncio import CancelledError
from collections.abc import Callable
from functools import lru_cache, partial
from traceback import clear_frames
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import get_script_prefix

from ..core.request_id import current_origin
from ..web.error_responses import REFUSALS
from ..web.kept_answers import REPLAYED
from ..web.request_ids import WebRequestBounds, environ_key, note_route, proxy_header
from ..web.settings import read_setting
from . import responses
from .kept_answers import REPLAYS
from .ninja_errors import let_refusals_through
from .streaming import send_in_request


class RequestIDMiddleware:
    """Give every request an id, ``request.request_id``: from its ``Req-Id`` header if that is one, else a fresh one.

    The id goes into every log record (``RequestIDFilter``), every lock's holder, and back to the client, unless the
    response has an id of its own. The body of a streaming response is in its request, too.

    A busy lock is answered with 409 and ``Retry-After``, a store that does not answer with 503. A request that lacks a
    value of the key gets 400. One with the key of another request (``once``) gets 422.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.asynchronous = iscoroutinefunction(get_response)
        if self.asynchronous:
            markcoroutinefunction(self)
            if type(self).process_view is RequestIDMiddleware.process_view:  # else a subclass's own, which counts
                # Django would send a plain function to a thread and back, for every request.
                self.process_view = self._aprocess_view  # type: ignore[method-assign]

    def __call__(self, request: HttpRequest) -> Any:
        if self.asynchronous:
            return self.__acall__(request)
        bounds, header = _bounds(request)
        outer = bounds.enter()
        try:
            response: HttpResponseBase = self.get_response(request)
            if isinstance(response, StreamingHttpResponse):
                send_in_request(response)
        finally:
            bounds.leave(outer)
        return self._answered(request, bounds, header, response)

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        bounds, header = _bounds(request)
        outer = bounds.enter()
        try:
            response: HttpResponseBase = await self.get_response(request)
            if isinstance(response, StreamingHttpResponse):
                send_in_request(response)
        except CancelledError as error:
            # The client has gone while another middleware had the response: it is never closed, and Django keeps it by
            # this error's frames until garbage is collected, and with it the lock that it is sent under.
            clear_frames(error.__traceback__)
            raise
        finally:
            bounds.leave(outer)
        return self._answered(request, bounds, header, response)

    @staticmethod
    def _answered(
        request: HttpRequest, bounds: WebRequestBounds, header: str, response: HttpResponseBase
    ) -> HttpResponseBase:
        """Django logs what it has to say of the answer after us, with ``request``."""
        request.request_id = request_id = bounds.settle()  # type: ignore[attr-defined]
        if not bounds.is_named_elsewhere:
            response.headers.setdefault(header, request_id)
        if hasattr(request, REPLAYS):
            response.headers[REPLAYED] = "true"
        return response

    def process_view(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The request has been routed."""
        let_refusals_through(view)
        if (origin := current_origin()) is not None:  # a middleware below has named it by now
            request.request_id = origin.known_as()  # type: ignore[attr-defined]
        if (match := request.resolver_match) is not None:
            note_route(request.method, get_script_prefix() + _readable(match.route))

    async def _aprocess_view(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return RequestIDMiddleware.process_view(self, request, view, args, kwargs)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """The answer to what refused the request; every other exception is Django's business."""
        if not isinstance(error, REFUSALS):
            return None
        return responses.refused(error, request)  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def _readable(route: str) -> str:
    """A route in the form of ``path()``, also that of a regular expression, such as REST framework's routers make."""
    return re.sub(r"\(\?P<(\w+)>[^()]*\)", r"<\1>", route).replace("^", "").replace("$", "")


@lru_cache(maxsize=1)
def header_and_keys() -> tuple[str, str, str]:
    """The header of the request id, its key in ``request.META``, and the key of the proxy's, which may be "".

    Kept, for every request asks; see ``apps.py``.
    """
    header = read_setting("DISTLOCK_REQUEST_ID_HEADER", partial(getattr, settings))
    proxy = proxy_header(is_chosen=hasattr(settings, "DISTLOCK_REQUEST_ID_HEADER"))
    return header, environ_key(header), environ_key(proxy) if proxy else ""


@lru_cache(maxsize=1)
def user_of_request() -> Callable[[Any], object] | None:
    """``DISTLOCK_USER``. Kept like the header."""
    return read_setting("DISTLOCK_USER", partial(getattr, settings))  # type: ignore[no-any-return]


def _bounds(request: HttpRequest) -> tuple[WebRequestBounds, str]:
    """The bounds of a request, which gets its ``request_id``; and the header to send that back in."""
    header, key, proxy = header_and_keys()
    user = user_of_request()
    bounds = WebRequestBounds(
        request.META.get(key),
        user=None if user is None else partial(user, request),
        proxy=request.META.get(proxy),
        named=partial(getattr, request, "request_id", None),
    )
    request.request_id = bounds.request_id  # type: ignore[attr-defined]
    return bounds, header
