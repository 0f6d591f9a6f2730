"""What a client is told when a request cannot run under its lock: pure values, of which a framework makes a response.

A busy lock is a 409 with an estimate in ``Retry-After``. A store that does not answer is a 503. A request that lacks a
value of the key is a 400. A key of another request is a 422. None names the lock: its key may hold
what no client should see. JSON is RFC 9457 (problem details).
"""

from __future__ import annotations

import html
import json
import logging
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, TypeAlias

from ..core.backend import SHARED
from ..core.errors import BackendUnavailable, KeyReused, KeyUnavailable, LockBusy
from ..core.request_id import current_origin, path_of
from ..locks.events import log_fields
from ..ops.readable import printable
from .texts import _, language, plural

logger = logging.getLogger("distlock_web")

#: Why a request is refused, each with an answer of its own.
Refusal: TypeAlias = LockBusy | BackendUnavailable | KeyUnavailable | KeyReused
REFUSALS = (LockBusy, BackendUnavailable, KeyUnavailable, KeyReused)

#: Characters of a request in a line of the log.
MAX_LOGGED = 200

#: A project's own page, where it has one: a template that is given the ``ErrorResponse`` as ``error``.
TEMPLATE = "distlock_web/refused.html"
#: In the order in which a framework should offer them to a browser; the first is the default.
OFFERED = ("text/html", "application/problem+json", "application/json")
#: The same for a program.
OFFERED_TO_PROGRAMS = OFFERED[1:] + OFFERED[:1]

_PAGE = """<!doctype html>
<html lang="{language}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>:root{{color-scheme:light dark}}
body{{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}}
h1{{font-size:1.4rem}}small{{opacity:.7}}</style></head>
<body><h1>{title}</h1><p>{detail}</p><p><small>{request}</small></p></body>
</html>
"""


class Headers(Protocol):
    """A request's, in either framework."""

    def get(self, name: str, /) -> str | None: ...


def offered(headers: Headers, media_type: str) -> tuple[str, ...]:
    """What to offer, the default in front; ``media_type`` is the body's. A script's ``fetch()`` accepts anything.

    htmx asks like a script, and wants HTML.
    """
    is_script = (
        headers.get("Sec-Fetch-Dest") == "empty"
        or headers.get("X-Requested-With") == "XMLHttpRequest"
        or media_type == "application/json"
        or media_type.endswith("+json")
    )
    return OFFERED_TO_PROGRAMS if is_script and headers.get("HX-Request") != "true" else OFFERED


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Status, headers and body for one refused request."""

    status: int
    title: str
    detail: str
    retry_after: int | None  #: whole seconds
    request_id: str
    #: ``lock_busy``, ``lock_unavailable``, ``lock_key_unavailable`` or ``lock_key_reused``: for programs.
    code: str

    @property
    def headers(self) -> dict[str, str]:
        """Headers beside the content type. Nothing is cached: the next try may succeed."""
        headers = {"Cache-Control": "no-store"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    @property
    def htmx_headers(self) -> dict[str, str]:
        """For a request of htmx: nothing on the page is replaced, whatever its version does with errors; an event says
        why: ``distlock:busy``, ``distlock:unavailable``, ``distlock:key_unavailable`` or ``distlock:key_reused``.
        ``detail`` and ``retryAfter`` are in the event's ``detail``.
        """
        event = self.code.replace("lock_", "distlock:")
        return {
            "HX-Reswap": "none",
            "HX-Trigger": json.dumps({event: {"detail": self.detail, "retryAfter": self.retry_after}}),
        }

    @property
    def fields(self) -> dict[str, object]:
        """What every answer in JSON has, in the form of whatever framework: for programs."""
        fields: dict[str, object] = {"detail": self.detail, "code": self.code, "request_id": self.request_id}
        if self.retry_after is not None:
            fields["retry_after"] = self.retry_after
        return fields

    def body(self, media_type: str | None) -> tuple[str, str]:
        """Content type and text, in the media type that the client prefers among :data:`OFFERED`."""
        if media_type not in OFFERED[1:]:
            request = _("Request %(id)s", id=self.request_id)
            fields = {"title": self.title, "detail": self.detail, "request": request, "language": language()}
            return "text/html; charset=utf-8", _PAGE.format(**{k: html.escape(v) for k, v in fields.items()})
        # What RFC 9457 wants for a title where the type is no address of a page about it: the status in words.
        problem = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status, **self.fields}
        return "application/problem+json", json.dumps(problem)


def error_response(error: Refusal, request_id: str) -> ErrorResponse:
    """What to answer to a request that was refused with this error."""
    if isinstance(error, LockBusy):
        retry_after = max(1, math.ceil(error.estimate))
        title, detail = _busy(error, retry_after)
        return ErrorResponse(409, title, detail, retry_after, request_id, "lock_busy")
    if isinstance(error, KeyUnavailable):
        return ErrorResponse(400, _("Incomplete request"), _missing(error), None, request_id, "lock_key_unavailable")
    if isinstance(error, KeyReused):
        detail = _("The key of this request was used for another one. Please begin again, with a new key.")
        return ErrorResponse(422, _("Key used before"), detail, None, request_id, "lock_key_reused")
    detail = _("This cannot be done safely at the moment. Please try again later.")
    return ErrorResponse(503, _("Temporarily unavailable"), detail, None, request_id, "lock_unavailable")


def _busy(error: LockBusy, seconds: int) -> tuple[str, str]:
    """Title and text: others may do something else behind a ``limit``, and not the same thing."""
    if error.full:
        return _("Too many are waiting"), plural(
            "Too many others are waiting already. Please try again in a second.",
            "Too many others are waiting already. Please try again in %(number)s seconds.",
            seconds,
        )
    if 1 < error.limit < SHARED:
        return _("All places are taken"), plural(
            "All places are taken at this moment. Please try again in a second.",
            "All places are taken at this moment. Please try again in %(number)s seconds.",
            seconds,
        )
    return _("Already in progress"), plural(
        "The same thing is being done at this moment. Please try again in a second.",
        "The same thing is being done at this moment. Please try again in %(number)s seconds.",
        seconds,
    )


def _missing(error: KeyUnavailable) -> str:
    if not error.missing:
        return _("The request lacks something that is needed for this.")
    parts = [
        _("the header %(name)s", name=name) if part == "header" else _("the field %(name)s", name=name)
        for part, name in error.missing
    ]
    return _("The request lacks %(missing)s.", missing=_(" or ").join(parts))


_EVENTS: dict[type[Refusal], str] = {
    BackendUnavailable: "error", LockBusy: "busy", KeyUnavailable: "no_key", KeyReused: "key_reused"
}  # fmt: skip


def log_refused(error: Refusal, method: str | None, path: str) -> None:
    """One line for a refused request: everyday is INFO, a store that does not answer is an ERROR.

    It has the request's method and route, ``POST /reset/<uid>/<token>/``. What was refused before it was routed has its
    path in place of that.
    """
    level = logging.ERROR if isinstance(error, BackendUnavailable) else logging.INFO
    event = next((event for kind, event in _EVENTS.items() if isinstance(error, kind)))
    fields = error.log_fields or log_fields(event, "", error.name or "", "")
    origin = current_origin()
    request = (path_of(origin) if origin is not None else "") or f"{method} {path}"
    # A server may hand on any text as the method, too, and of any length.
    logger.log(level, "%s: %s", printable(request[:MAX_LOGGED]), error, extra=fields)
