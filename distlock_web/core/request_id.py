"""Who is asking: the request id, the request's own token and a few words on what runs, in a context variable.

The request id is for people: it is logged and shown on the admin page. It may come from a header, so it is never
proof of anything (law 1 of the design). The request's token is random and stays here: every lock that the request takes
is taken in its name, as a part of the token of each acquisition (``runtime.new_token``).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_HEADER = "Req-Id"

# Long enough for every id in common use (UUIDs, W3C traceparent, AWS trace ids), short enough to log and to store.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:=+/@~-]{1,128}", re.ASCII)

_TOKEN_BYTES, _ID_BYTES = 12, 16


@dataclass(slots=True, eq=False)
class Origin:
    """Where the running code was entered: the request id, for a request its method and route, and its token."""

    request_id: str
    #: What runs, for people. It is stored with each lock and shown: of a URL the route, for its values may be secrets.
    path: str
    token: str  #: 24 hex digits that nobody can guess
    #: Whose request it is, for people. Called for every lock that is taken; None: not to be known.
    user: Callable[[], str] | None = None

    @classmethod
    def new(cls, request_id: str | None = None, path: str = "", user: Callable[[], str] | None = None) -> Origin:
        """Of a request that begins. An id that is missing, too long or has unusual characters is replaced."""
        random = os.urandom(_TOKEN_BYTES + _ID_BYTES).hex()
        if request_id is None or not acceptable(request_id):
            request_id = random[2 * _TOKEN_BYTES :]
        return cls(request_id, path, random[: 2 * _TOKEN_BYTES], user)


_origin: ContextVar[Origin | None] = ContextVar("distlock_origin", default=None)
_token: ContextVar[str | None] = ContextVar("distlock_token", default=None)


def acceptable(request_id: str) -> bool:
    """Whether this can be a request id: 1 to 128 characters, of those that ids are made of."""
    return _ACCEPTED.fullmatch(request_id) is not None


def swap_origin(origin: Origin | None) -> Origin | None:
    """Bind this origin (None: no origin) in place of the one that was bound, which is returned."""
    before = _origin.get()
    _origin.set(origin)
    return before


class Bound(NamedTuple):
    """An origin that was bound, and where."""

    origin: Origin
    token: Token[Origin | None]


def bind_origin(origin: Origin) -> Bound:
    """Bind this origin until :func:`unbind_origin`."""
    return Bound(origin, _origin.set(origin))


def unbind_origin(bound: Bound) -> bool:
    """Bind what was bound before. False, and nothing is changed: it ends as garbage, in the middle of others' code.

    What is bound there is theirs: they would be inside of locks that are not their own. A task that was begun inside
    has inherited this very origin, and is somebody else all the same.
    """
    if isinstance(sys.exception(), GeneratorExit):
        if _origin.get() is not bound.origin:
            return False
        try:
            _origin.reset(bound.token)
        except ValueError:  # of another context
            return False
    else:  # perhaps in another context than it was bound in, as a generator's blocks are
        _origin.set(None if bound.token.old_value is Token.MISSING else bound.token.old_value)
    return True


def current_origin() -> Origin | None:
    """The origin bound to the running context, or None outside a request."""
    return _origin.get()


def current_request_id() -> str:
    """The request id of the running context. Outside a request one is made and kept."""
    origin = _origin.get()
    if origin is None:
        origin = Origin(os.urandom(_ID_BYTES).hex(), "", request_token())
        _origin.set(origin)
    return origin.request_id


def request_token() -> str:
    """The token of the running request. A thread or a task outside of any makes one of its own, and keeps it."""
    origin = _origin.get()
    if origin is not None:
        return origin.token
    token = _token.get()
    if token is None:
        token = os.urandom(_TOKEN_BYTES).hex()
        _token.set(token)
    return token


class RequestIDFilter(logging.Filter):
    """A logging filter that puts ``request_id`` on every record (``-`` outside a request).

    Django logs a 404 or a 500 when the middleware has ended, and gives the request to the record: then it is of that,
    whatever request runs.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        request_id = _id_of_request(getattr(record, "request", None))
        if request_id is None and (origin := _origin.get()) is not None:
            request_id = origin.request_id
        record.request_id = request_id or "-"
        return True


def _id_of_request(request: object) -> str | None:
    try:
        found = getattr(request, "request_id", None)
    except RuntimeError:  # Flask's request, outside of any: a line in the log is no reason to fail
        return None
    return found if isinstance(found, str) else None
