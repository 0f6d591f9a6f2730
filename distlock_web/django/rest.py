"""Django REST framework: refused requests in its own form.

REST_FRAMEWORK = {"EXCEPTION_HANDLER": "distlock_web.django.rest.exception_handler"}
"""

from __future__ import annotations

from typing import Any

from rest_framework import views
from rest_framework.exceptions import APIException

from ..web.error_responses import REFUSALS
from ..web.framework import logged
from .responses import refused_request


def exception_handler(exc: Exception, context: dict[str, Any]) -> Any:
    """REST framework's own handler, to which a busy lock is a 409, an unreachable store a 503, a missing value a 400, a
    key that was used for another request a 422.

    All are ``{"detail": …, "code": …, "request_id": …}`` in the view's renderer, with an estimate in ``retry_after``
    and in ``Retry-After``. A project with a handler of its own calls :func:`api_exception` in it.
    """
    known = api_exception(exc, context)
    response = views.exception_handler(known, context)
    if response is not None and isinstance(exc, REFUSALS):
        response.data = {**known.fields, **response.data}  # type: ignore[attr-defined]
        response["Cache-Control"] = "no-store"
    return response


def api_exception(exc: Exception, context: dict[str, Any]) -> Exception:
    """An ``APIException`` for ``LockBusy`` (code ``lock_busy``), ``BackendUnavailable`` (``lock_unavailable``),
    ``KeyUnavailable`` (``lock_key_unavailable``) and ``KeyReused`` (``lock_key_reused``). Its ``fields`` are those of
    our own answer, as a dictionary.

    Every other exception comes back as it is.
    """
    if not isinstance(exc, REFUSALS):
        return exc
    answer = logged(exc, refused_request(context["request"]))
    exception: Exception = APIException(answer.detail, answer.code)
    exception.status_code = answer.status  # type: ignore[attr-defined]
    exception.wait = answer.retry_after  # type: ignore[attr-defined]  # which REST framework makes a Retry-After of
    exception.fields = answer.fields  # type: ignore[attr-defined]
    exception.__cause__ = exc
    return exception
