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

from ..core.runtime import in_event_loop
from ..web.error_responses import TEMPLATE, ErrorResponse, Refusal
from ..web.framework import RefusedRequest, refusal
from .locked_views import class_of


def refused(error: Refusal, *args: Any, **kwargs: Any) -> Any:
    """HTML or JSON, by what the client accepts: what the middleware answers. In an async view it is awaited."""
    return _answer(error, args)


def page(error: Refusal, *args: Any, **kwargs: Any) -> Any:
    """A page of HTML: the template ``distlock_web/refused.html`` if there is one, given ``error``; else our own."""
    return _answer(error, args, "text/html")


def problem(error: Refusal, *args: Any, **kwargs: Any) -> Any:
    """Problem details in JSON (RFC 9457), whatever the client accepts."""
    return _answer(error, args, "application/problem+json")


def request_in(args: tuple[object, ...]) -> HttpRequest | None:
    """The request that a view was called with; None if it is no view that was called."""
    for argument in args[:2]:  # a view's first, or a method's second
        # REST framework's request is a wrapper, which shows Django's own in no public way.
        request = getattr(argument, "_request", argument)
        if isinstance(request, HttpRequest):
            return request
    return None


def refused_request(request: HttpRequest) -> RefusedRequest:
    """A view of REST framework speaks JSON to who does not ask for a page."""
    view_class = class_of(getattr(request.resolver_match, "func", None))
    for_programs = hasattr(view_class, "renderer_classes")
    request_id = getattr(request, "request_id", None)
    media_type = str(request.content_type)
    return RefusedRequest(request.method, request.path, request.headers, media_type, for_programs, request_id)


def _answer(error: Refusal, args: tuple[Any, ...], media_type: str | None = None) -> Any:
    request = request_in(args)
    if request is None:
        raise error

    def answer() -> HttpResponse:
        made = refusal(error, refused_request(request), media_type, lambda said: _own_page(said, request))
        return HttpResponse(made.body, status=made.status, headers=made.headers)

    # In an event loop a template's context may not ask the database.
    return sync_to_async(answer)() if in_event_loop() else answer()


def _own_page(answer: ErrorResponse, request: HttpRequest) -> str | None:
    try:
        template = loader.get_template(TEMPLATE)
    except TemplateDoesNotExist:
        return None
    return template.render({"error": answer}, request)
