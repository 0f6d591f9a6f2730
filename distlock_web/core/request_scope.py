"""A request of your own making: a task, a command, a message from a queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ConfigurationError
from .request_id import Origin, acceptable, swap_origin


@contextmanager
def request_scope(request_id: str | None = None, path: str = "") -> Iterator[str]:
    """What the middleware does for a request, for a task or a command: ``with request_scope("job-17"):``.

    In the block ``current_request_id()`` is this id, a fresh one if it is left out; it is in the log records
    (``RequestIDFilter``) and beside every lock that is taken; what the block gives is the id. ``path`` says for people
    what runs, where a request has its method and path. Plain ``with``, in async code, too; also a decorator.

    Raises ``ConfigurationError`` for an id that a header could not have: 1 to 128 of ``A-Z a-z 0-9 . _ : = + / @ ~ -``.
    """
    if request_id is not None and not (isinstance(request_id, str) and acceptable(request_id)):
        raise ConfigurationError(
            f"request_id is {request_id!r}; it has to be text of 1 to 128 characters: letters, digits and ._:=+/@~-"
        )
    origin = Origin.new(request_id, path)
    outer = swap_origin(origin)
    try:
        yield origin.request_id
    finally:
        swap_origin(outer)
