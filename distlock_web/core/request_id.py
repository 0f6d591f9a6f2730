"""Who is asking, in a context variable: the request id, the request's own token and a few words on what runs.

And who holds a lock, in words for people, made of that: stored beside the token, shown on the admin page.

The request id is for people: it is logged and shown on the admin page. It may come from a header, so it is never
proof of anything (law 1 of the design). The request's token is random and stays here: every lock that the request takes
is taken in its name, as a part of the token of each acquisition (``runtime.new_token``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

DEFAULT_HEADER = "Req-Id"
#: In which a proxy, or a service that calls this one, sends its id.
PROXY_HEADER = "X-Request-ID"

# Long enough for every id in common use (UUIDs, W3C traceparent, AWS trace ids), short enough to log and to store.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:=+/@~-]{1,128}", re.ASCII)

_TOKEN_BYTES, _ID_BYTES = 12, 16


@dataclass(slots=True, eq=False)
class Origin:
    """Where the running code was entered: the request id, for a request its method and route, and its token."""

    request_id: str
    #: What runs, for people. It is stored with each lock and shown: of a URL the route, for its values may be secrets.
    #: A function finds it out for each lock, where a framework routes a request without a word.
    path: str | Callable[[], str]
    token: str  #: 24 hex digits that cannot be guessed
    #: Whose request it is, for people. Called for every lock that is taken; None: not to be known.
    user: Callable[[], str] | None = None
    #: What another program in this process calls the request by now; None: it has not named it.
    named: Callable[[], str | None] | None = None
    is_named: bool = False  #: another program has named it

    @classmethod
    def new(
        cls,
        request_id: str | None = None,
        path: str | Callable[[], str] = "",
        user: Callable[[], str] | None = None,
        named: Callable[[], str | None] | None = None,
    ) -> Origin:
        """Of a request that begins. An id that is missing, too long or has unusual characters is replaced."""
        random = os.urandom(_TOKEN_BYTES + _ID_BYTES).hex()
        if request_id is None or not acceptable(request_id):
            request_id = random[2 * _TOKEN_BYTES :]
        return cls(request_id, path, random[: 2 * _TOKEN_BYTES], user, named)

    def known_as(self) -> str:
        """The request id by now: a neighbour may name the request when it has begun, and clears that before its end."""
        if self.named is not None and (name := self.named()) is not None:
            self.request_id, self.is_named = name, True
        return self.request_id


def path_of(origin: Origin) -> str:
    """What runs, as far as it is known now."""
    return origin.path if isinstance(origin.path, str) else origin.path()


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
    has inherited this very origin, and is another request all the same.
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
    """The request id of the running context. Outside a request, a new id is made and kept."""
    origin = _origin.get()
    if origin is None:
        origin = Origin(os.urandom(_ID_BYTES).hex(), "", request_token())
        _origin.set(origin)
    return origin.known_as()


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

    Django logs a 404 or a 500 after the middleware has ended, and puts the request on the record. Then the id is that
    request's.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        request_id = _id_of_request(getattr(record, "request", None))
        if request_id is None and (origin := _origin.get()) is not None:
            request_id = origin.known_as()
        record.request_id = request_id or "-"
        return True


def _id_of_request(request: object) -> str | None:
    try:
        found = getattr(request, "request_id", None)
    except RuntimeError:  # Flask's request, outside of any: a line in the log is no reason to fail
        return None
    return found if isinstance(found, str) else None


# Who holds a lock, for people -----------------------------------------------------------------------------------------

_HOST = socket.gethostname()
MAX_FIELD_CHARS = 200  # of one field: it is stored with every lock
_MAX_WORKER_CHARS = 60
_SHOWN_DIGITS = 8  # of the request's token, which has 24: the others stay secret

_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii

#: Programs whose first argument says what they do. Another one's may be anybody's secret.
_WITH_COMMANDS = ("manage.py", "django-admin", "flask", "celery", "dramatiq", "huey_consumer", "rq", "distlock")
_COMMAND = re.compile(r"[A-Za-z][\w.:-]*", re.ASCII)


@lru_cache(maxsize=1024)
def _constant(function: str, expire: float, pid: int) -> str:
    return f"{_quoted(function[:MAX_FIELD_CHARS])},{_quoted(_HOST)},{pid},{expire}"


class _ThreadWords(threading.local):
    #: What runs here, the command and the thread, as it is stored: found once, for its name hardly ever changes.
    words = ""


_this_thread = _ThreadWords()


def _in_thread() -> str:
    words = f"{_command()},{_quoted(threading.current_thread().name[:_MAX_WORKER_CHARS])}"
    _this_thread.words = words
    return words


def _in_task() -> str:
    task = asyncio.current_task()
    return _in_thread() if task is None else f"{_command()},{_quoted(task.get_name()[:_MAX_WORKER_CHARS])}"


@lru_cache(maxsize=1)
def _command() -> str:
    """What was started: ``manage.py migrate``, ``gunicorn``, ``nightly.py``. In words that can be stored."""
    path, *arguments = sys.argv or [""]
    program = os.path.basename(path)
    if program == "__main__.py":
        program = os.path.basename(os.path.dirname(path))
    if program in ("", "-", "-c"):
        program = "python"
    if program in _WITH_COMMANDS and arguments and _COMMAND.fullmatch(arguments[0]):
        program = f"{program} {arguments[0]}"
    return _quoted(program[:MAX_FIELD_CHARS])


def ask_user() -> None:
    """Find out now whose request it is, and not first when a lock is taken: that may read the project's database."""
    origin = current_origin()
    if origin is not None and origin.user is not None:
        origin.user()


@dataclass(frozen=True, slots=True)
class HolderInfo:
    request_id: str = ""
    path: str = ""  #: method and route of the request, ``POST /orders/<int:order_id>/pay``
    function: str = ""  #: that took the lock: a view, a task, a method; for ``lock(...)`` the line, ``module:line``
    host: str = ""
    pid: int = 0
    expire: float = 0.0  #: the whole of the lease, in seconds: what is left is drawn against it
    #: The beginning of the request's token: the same for all locks of one request (task, process), and for no other's,
    #: which a request id does not promise. No proof of anything.
    request: str = ""
    command: str = ""  #: the program that runs: ``manage.py migrate``, ``gunicorn``
    worker: str = ""  #: the thread's or the asyncio task's name
    user: str = ""  #: whose request it is, as ``DISTLOCK_USER`` says
    renews: bool = False  #: it renews the lease: what is left says nothing about when it ends

    @classmethod
    def current(cls, function: str = "", expire: float = 0.0, asynchronous: bool = False, renews: bool = False) -> str:
        """The running caller, in the words that :meth:`loads` reads. Made for every lock that is taken: it is quick.

        ``asynchronous``: it is an asyncio task that takes it.
        """
        origin = _origin.get()
        constant = _constant(function, expire, os.getpid())
        tail = _in_task() if asynchronous else _this_thread.words or _in_thread()
        end = ",1]" if renews else "]"
        if origin is None:
            return f'["","",{constant},"{(_token.get() or request_token())[:_SHOWN_DIGITS]}",{tail},""{end}'
        path, token = _quoted(path_of(origin)[:MAX_FIELD_CHARS]), origin.token[:_SHOWN_DIGITS]
        user = '""' if origin.user is None else _quoted(origin.user())
        return f'[{_quoted(origin.known_as())},{path},{constant},"{token}",{tail},{user}{end}'

    @classmethod
    def loads(cls, text: str) -> HolderInfo:
        """The holder in a store's words; empty where the words are not ours (another program).

        An older version says less, and a newer one may say more.
        """
        try:
            words = json.loads(text)
            if not isinstance(words, list):
                return cls()
            request_id, path, function, host, pid, expire, request, *more = words
            command, worker, user = (*map(str, more[:3]), "", "", "")[:3]
            return cls(
                str(request_id), str(path), str(function), str(host), int(pid), float(expire), str(request),
                command, worker, user, more[3:4] == [1],
            )  # fmt: skip
        except (ValueError, TypeError, OverflowError, RecursionError):  # Infinity, or a thousand brackets
            return cls()

    def describe(self) -> str:
        """In one printable line, for messages and logs; empty if nothing is known."""
        if self == HolderInfo():
            return ""
        by_hand = ":" in self.function  # a line of code: what runs says more
        what = (self.path if by_hand else "") or self.function or self.path or self.command or "a process"
        request = f", request {self.request_id}" if self.request_id else ""
        line = f"{what} on {self.host or 'an unknown host'} (pid {self.pid}){request}"
        return line if line.isprintable() else ascii(line)[1:-1]
