"""What a client is told when its view could not run under its lock: 409 if it is busy, 503 if its store is unreachable,
400 if the request lacks what the key names, 422 if its key was used for another request (``once``).

Each of these is an ``on_busy`` and an ``on_backend_error``: of a decorator, of an alias in ``DISTLOCK``, or of the app.
A function that is not the view of the request raises the error as if they were not there, wherever it is called. Called
by hand, in an error handler, for instance, they need a request only.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, current_app, has_request_context, render_template, request
from flask.typing import ResponseReturnValue
from jinja2 import TemplateNotFound

from ..core.errors import DistLockError
from ..locks.hooks import for_views
from ..web.error_responses import REFUSALS, TEMPLATE, ErrorResponse, Refusal
from ..web.framework import RefusedRequest, refusal
from .kept_answers import Answered


@for_views
def refused(error: Refusal, *args: Any, **kwargs: Any) -> Response:
    """HTML or JSON, by what the client accepts: what the extension answers."""
    return _response(error)


@for_views
def page(error: Refusal, *args: Any, **kwargs: Any) -> Response:
    """A page of HTML: the template ``distlock_web/refused.html`` if there is one, given ``error``; else our own."""
    return _response(error, "text/html")


@for_views
def problem(error: Refusal, *args: Any, **kwargs: Any) -> Response:
    """Problem details in JSON (RFC 9457), whatever the client accepts."""
    return _response(error, "application/problem+json")


def handle_error(error: Refusal) -> ResponseReturnValue:
    """The error handler that ``init_app`` registers. One of the app's own for the same class replaces it."""
    general = current_app.error_handler_spec[None][None].get(DistLockError)
    if general is not None:
        # Flask prefers the handler of the more special class, which here is ours: the app's own comes first.
        return current_app.ensure_sync(general)(error)  # type: ignore[no-any-return]
    return refused(error)


def refuse_in_front(app: Flask) -> None:
    """Before the first request, when all extensions are there: refusals reach the app's error handlers.

    Flask-RESTX and Flask-RESTful put themselves in front of ``app.handle_user_exception``, and answer with 500 what is
    no ``HTTPException``.
    """
    if "handle_user_exception" not in vars(app):  # Flask's own
        return
    others = app.handle_user_exception

    def handle_user_exception(error: Exception) -> Any:
        ours = isinstance(error, (*REFUSALS, Answered))
        return type(app).handle_user_exception(app, error) if ours else others(error)

    app.handle_user_exception = handle_user_exception  # type: ignore[assignment, method-assign]


def _response(error: Refusal, media_type: str | None = None) -> Response:
    if not has_request_context():
        raise error
    # A resource of Flask-RESTX or Flask-RESTful speaks JSON to who does not ask for a page.
    view = current_app.view_functions.get(request.endpoint or "")
    for_programs = hasattr(getattr(view, "view_class", None), "representations")
    refused = RefusedRequest(request.method, request.path, request.headers, request.mimetype, for_programs)
    made = refusal(error, refused, media_type, _own_page)
    return Response(made.body, made.status, made.headers)


def _own_page(answer: ErrorResponse) -> str | None:
    try:
        template = current_app.jinja_env.get_template(TEMPLATE)
    except TemplateNotFound as missing:
        if missing.name != TEMPLATE:
            raise
        return None
    return render_template(template, error=answer)
