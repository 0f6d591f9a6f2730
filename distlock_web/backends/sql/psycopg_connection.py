"""A connection of psycopg 3 whose answers are waited for within a limit: a server that is frozen never says so."""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from typing import Any, TypeVar

import psycopg

from ...core.runtime import now

T = TypeVar("T")


class PsycopgTimeout(psycopg.OperationalError):
    """The server did not answer in time."""


def bound(connection: Any, limit: float) -> None:
    """Wherever it was made: psycopg itself calls ``wait`` for each answer.

    ``connection.limit``: seconds for one answer; None: as long as it takes.
    """
    connection.__class__ = _bounded(connection.__class__)
    connection.limit = limit


@cache
def _bounded(kind: Any) -> Any:
    def wait(self: Any, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        if self.limit is not None:
            gen = _within(gen, now() + self.limit, self.limit)
        answer: T = kind.wait(self, gen, *args, **kwargs)
        return answer

    return type(
        f"Bounded{kind.__name__}", (kind,), {"wait": wait}
    )  # with another base it would be laid out differently


def _within(work: Generator[Any, Any, T], until: float, limit: float) -> Generator[Any, Any, T]:
    """The same work; psycopg comes by ten times a second where there is nothing to read."""
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if not ready and now() > until:
                raise PsycopgTimeout(f"the server did not answer within {limit:.1f} s")
            wanted = work.send(ready)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
