"""What a client is told when its view could not run under its lock: 409 if it is busy, 503 if its store is unreachable,
400 if the request lacks what the key names, 422 if its key was used for another request (``once``).

Each of these is an ``on_busy`` and an ``on_backend_error``: of a decorator, of an alias in ``DISTLOCK``, or of the
project. Where there is no request, in a task or a plain function, they raise the error as if they were not there.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers

from ..core.request_id import current_request_id
from ..core.runtime import in_event_loop
from ..web.error_responses import (
    OFFERED_TO_PROGRAMS,
    TEMPLATE,
    ErrorResponse,
    Refusal,
    error_response,
    log_refused,
    offered,
)
from .locked_views import class_of


def refused(error: Refusal, *args: Any, **kwargs: Any) -> Any:
    """HTML or JSON, by what the client accepts: what the middleware answers. In an async view it is awaited."""
    request = _request(error, args)
    types = _offered(request)
    return _answer(error, request, request.get_preferred_type(types) or types[0])


def page(error: Refusal, *args: Any, **kwargs: Any) -> Any:
    """A page of HTML: the template ``distlock_web/refused.html`` if there is one, given ``error``; else our own."""
    return _answer(error, _request(error, args), "text/html")


def problem(error: Refusal, *args: Any, **kwargs: Any) -> Any:
    """Problem details in JSON (RFC 9457), whatever the client accepts."""
    return _answer(error, _request(error, args), "application/problem+json")


def logged_error_response(error: Refusal, request: HttpRequest) -> ErrorResponse:
    """The answer as a value, and a line in the log."""
    log_refused(error, request.method, request.path)
    return error_response(error, getattr(request, "request_id", None) or current_request_id())


def _request(error: Refusal, args: tuple[Any, ...]) -> HttpRequest:
    request = request_in(args)
    if request is None:
        raise error
    return request


def request_in(args: tuple[object, ...]) -> HttpRequest | None:
    """The request that a view was called with; None if it is no view that was called."""
    for argument in args[:2]:  # a view's first, or a method's second
        # REST framework's request is a wrapper, which shows Django's own in no public way.
        request = getattr(argument, "_request", argument)
        if isinstance(request, HttpRequest):
            return request
    return None


def _offered(request: HttpRequest) -> tuple[str, ...]:
    """A view of REST framework speaks JSON to who does not ask for a page."""
    view_class = class_of(getattr(request.resolver_match, "func", None))
    if hasattr(view_class, "renderer_classes"):
        return OFFERED_TO_PROGRAMS
    return offered(request.headers, str(request.content_type))


def _answer(error: Refusal, request: HttpRequest, media_type: str | None) -> Any:
    if in_event_loop():  # where a template's context may not ask the database
        return sync_to_async(_response)(error, request, media_type)
    return _response(error, request, media_type)


def _response(error: Refusal, request: HttpRequest, media_type: str | None) -> HttpResponse:
    answer = logged_error_response(error, request)
    content_type, body = answer.body(media_type)
    if content_type.startswith("text/html"):
        body = _own_page(answer, request) or body
    response = HttpResponse(body, content_type=content_type, status=answer.status, headers=answer.headers)
    if request.headers.get("HX-Request") == "true":
        for name, value in answer.htmx_headers.items():
            response[name] = value
    patch_vary_headers(response, ["Accept", "HX-Request"])
    return response


def _own_page(answer: ErrorResponse, request: HttpRequest) -> str | None:
    try:
        template = loader.get_template(TEMPLATE)
    except TemplateDoesNotExist:
        return None
    return template.render({"error": answer}, request)
