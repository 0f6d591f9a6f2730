"""Who is asking: the request id and a few words on what runs, in a context variable.

The request id is for people: it is logged and shown on the admin page. It may come from a header, so it is never
proof of anything (law 1 of the design); what owns a lock is a token that is made for one acquisition.
"""

from __future__ import annotations

import logging
import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

DEFAULT_HEADER = "Req-Id"

# Long enough for every id in common use (UUIDs, W3C traceparent, AWS trace ids), short enough to log and to store.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:=+/@~-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the running code was entered: the request id, and for a request its method and path."""

    request_id: str
    path: str = ""


_origin: ContextVar[Origin | None] = ContextVar("distlock_origin", default=None)


def accept(header: str | None) -> str:
    """The id that came in a header, or a fresh one where it is missing, too long or has unusual characters."""
    if header is not None and _ACCEPTED.fullmatch(header):
        return header
    return secrets.token_hex(16)


def bind(request_id: str, path: str = "") -> None:
    """Make this the origin of everything that the running context does until :func:`clear`."""
    _origin.set(Origin(request_id, path))


def clear() -> None:
    """Forget the origin. The seeds' filter does so in its ``finally``: threads and contexts are used again."""
    _origin.set(None)


def swap_origin(origin: Origin | None) -> Origin | None:
    """Bind this origin (None: no origin) in place of the one that was bound, which is returned."""
    before = _origin.get()
    _origin.set(origin)
    return before


def current_origin() -> Origin | None:
    """The origin bound to the running context, or None outside a request."""
    return _origin.get()


def current_request_id() -> str:
    """The request id of the running context. Outside a request one is made and kept, as the seeds' ``WebUtil`` does."""
    origin = _origin.get()
    if origin is None:
        origin = Origin(secrets.token_hex(16))
        _origin.set(origin)
    return origin.request_id


class RequestIDFilter(logging.Filter):
    """A logging filter that puts ``request_id`` on every record (``-`` outside a request)."""

    def filter(self, record: logging.LogRecord) -> bool:
        origin = _origin.get()
        record.request_id = origin.request_id if origin else "-"
        return True
