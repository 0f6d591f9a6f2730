"""A request of your own making: a task, a command, a message from a queue.

Three things are called a scope: a ``Scope`` (``scope.py``) is one block under its locks; ``request_scope`` is the time
of one request in code of your own; ``RequestScope`` (``web/request_ids.py``) is what the middlewares make of a web
request, and can be left and entered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import ConfigurationError
from ..core.request_id import Origin, acceptable, swap_origin
from .chain import swap_scopes


@contextmanager
def request_scope(request_id: str | None = None, path: str = "") -> Iterator[str]:
    """What the middleware does for a request, for a task or a command: ``with request_scope("job-17"):``.

    In the block ``current_request_id()`` is this id, a fresh one if it is left out; it is in the log records
    (``RequestIDFilter``) and beside every lock that is taken; what the block gives is the id. ``path`` says for people
    what runs, where a request has its method and path. Plain ``with``, in async code, too; also a decorator.

    As every request it begins inside of no lock: one that is held around it, or that the job before left behind in this
    thread, is another request's, and is not entered again but waited for.

    Raises ``ConfigurationError`` for an id that a header could not have: 1 to 128 of ``A-Z a-z 0-9 . _ : = + / @ ~ -``.
    """
    if request_id is not None and not (isinstance(request_id, str) and acceptable(request_id)):
        raise ConfigurationError(
            f"request_id is {request_id!r}; it has to be text of 1 to 128 characters: letters, digits and ._:=+/@~-"
        )
    origin = Origin.new(request_id, path)
    outer_origin, outer_scopes = swap_origin(origin), swap_scopes()
    try:
        yield origin.request_id
    finally:
        swap_scopes(outer_scopes)
        swap_origin(outer_origin)
