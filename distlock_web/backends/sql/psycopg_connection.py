"""A connection of psycopg whose answers are waited for within a limit: a server that is frozen never says so."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

from ...core.runtime import now

T = TypeVar("T")


class Unanswered(psycopg.OperationalError):
    """The server did not answer in time."""


class BoundedConnection(psycopg.Connection[Any]):
    #: Seconds for one answer; None: as long as it takes.
    limit: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        if self.limit is not None:
            gen = _bounded(gen, now() + self.limit, self.limit)
        return super().wait(gen, *args, **kwargs)


def _bounded(work: Generator[Any, Any, T], until: float, limit: float) -> Generator[Any, Any, T]:
    """The same work; psycopg comes by ten times a second where there is nothing to read."""
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if not ready and now() > until:
                raise Unanswered(f"the server did not answer within {limit:.1f} s")
            wanted = work.send(ready)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
