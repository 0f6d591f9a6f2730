"""What a client is told when its endpoint could not run under its lock: 409 if it is busy, 503 if its store is
unreachable, 400 if the request lacks what the key names, 422 if its key was used for another request (``once``).

Each of these is an ``on_busy`` and an ``on_backend_error``. A function that is not the endpoint of the request raises
the error as if they were not there.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from ..locks.hooks import for_views
from ..web.asgi import refused_request, running
from ..web.error_responses import Refusal
from ..web.framework import refusal


@for_views
def refused(error: Refusal, *args: Any, **kwargs: Any) -> Response:
    """HTML or JSON, by what the client accepts: what the extension answers. FastAPI speaks JSON to who does not say."""
    return _response(error)


@for_views
def page(error: Refusal, *args: Any, **kwargs: Any) -> Response:
    """A page of HTML."""
    return _response(error, "text/html")


@for_views
def problem(error: Refusal, *args: Any, **kwargs: Any) -> Response:
    """Problem details in JSON (RFC 9457), whatever the client accepts."""
    return _response(error, "application/problem+json")


def _response(error: Refusal, media_type: str | None = None) -> Response:
    request = running.get()
    if request is None:
        raise error
    classes = type(request.scope.get("app")).__mro__
    for_programs = any(each.__module__.partition(".")[0] == "fastapi" for each in classes)
    made = refusal(error, refused_request(request, for_programs=for_programs), media_type)
    return Response(made.body, made.status, made.headers)
