"""What a client is told when its view could not run under its lock: 409 if it is busy, 503 if the store is away.

Each of these is an ``on_busy`` and an ``on_backend_error``: of a decorator, of an alias in ``DISTLOCK``, or of the app.
Outside of a request, in a task or a command, they raise the error as if they were not there.
"""

from __future__ import annotations

from typing import Any

from flask import Response, current_app, has_request_context, render_template, request
from jinja2 import TemplateNotFound

from ..core.errors import BackendUnavailable, LockBusy
from ..core.request_id import current_request_id
from ..web.error_responses import OFFERED, TEMPLATE, Refusal, refusal


def refused(error: LockBusy | BackendUnavailable, *args: Any, **kwargs: Any) -> Response:
    """HTML or JSON, by what the client accepts: what the extension answers."""
    _need_request(error)
    return _response(error, request.accept_mimetypes.best_match(OFFERED))


def page(error: LockBusy | BackendUnavailable, *args: Any, **kwargs: Any) -> Response:
    """A page of HTML: the template ``distlock_web/refused.html`` if there is one, given ``refusal``; else our own."""
    _need_request(error)
    return _response(error, "text/html")


def problem(error: LockBusy | BackendUnavailable, *args: Any, **kwargs: Any) -> Response:
    """Problem details in JSON (RFC 9457), whatever the client accepts."""
    _need_request(error)
    return _response(error, "application/problem+json")


def _need_request(error: LockBusy | BackendUnavailable) -> None:
    if not has_request_context():
        raise error


def _response(error: LockBusy | BackendUnavailable, media_type: str | None) -> Response:
    refused = refusal(error, current_request_id())
    content_type, body = refused.body(media_type)
    if content_type.startswith("text/html"):
        body = _own_page(refused) or body
    response = Response(body, refused.status, refused.headers, content_type=content_type)
    if request.headers.get("HX-RequestScope") == "true":
        response.headers.update(refused.htmx_headers)
    response.vary.update(["Accept", "HX-RequestScope"])
    return response


def _own_page(refused: Refusal) -> str | None:
    try:
        template = current_app.jinja_env.get_template(TEMPLATE)
    except TemplateNotFound as missing:
        if missing.name != TEMPLATE:
            raise
        return None
    return render_template(template, refusal=refused)
