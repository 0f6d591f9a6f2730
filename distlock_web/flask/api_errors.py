"""Flask-RESTX and Flask-RESTful handle the exceptions of their resources before the app's handlers are asked.

They do so by putting themselves in front of ``app.handle_user_exception``, and answer what is no ``HTTPException`` with
500. So a refusal reaches them as one, from which they make an answer in their own form. What their users say of it, by
``@api.errorhandler(LockBusy)`` or ``Api(errors={"LockBusy": ...})``, counts as before.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from ..core.request_id import current_request_id
from ..web.error_responses import REFUSALS, ErrorResponse, Refusal, error_response
from .responses import refused


def refuse_in_front(app: Flask) -> None:
    """Before the first request, when all extensions are there: whichever came last stands in front of the others."""
    if "handle_user_exception" not in vars(app):  # Flask's own, which has our handlers
        return
    others = app.handle_user_exception

    def handle_user_exception(error: Exception) -> Any:
        if isinstance(error, REFUSALS) and not isinstance(error, HTTPException):
            error = _as_http(error)
        return others(error)

    app.handle_user_exception = handle_user_exception  # type: ignore[assignment, method-assign]


def _as_http(error: Refusal) -> Exception:
    of = type(error)
    kind = _classes.get(of) or _classes.setdefault(of, type(of.__name__, (of, _Refused), {}))
    made: Any = kind.__new__(kind)
    made.__dict__.update(error.__dict__)
    made.args, made.__cause__ = error.args, error
    made.answer = answer = error_response(error, current_request_id())
    made.code, made.description, made.response = answer.status, answer.detail, None
    return made  # type: ignore[no-any-return]


class _Refused(HTTPException):
    answer: ErrorResponse
    __str__ = Exception.__str__  # the error's own message, for the log and for handlers

    def get_response(self, *args: Any, **kwargs: Any) -> Response:
        """Both take its headers, and then ``data`` for the body. (Not before: to RESTX that would count more than what
        a handler of the API's own has said, which does not ask for this.)"""
        fields = self.answer.fields
        self.data = {"message": fields.pop("detail"), **fields}
        return refused(self)  # type: ignore[arg-type]  # it is a refusal, too


_classes: dict[type[Refusal], type[Exception]] = {}
