"""A connection of a driver in C, psycopg2 or mysqlclient, which waits for an answer for as long as that takes.

A thread ends the connection when its time is over: then the driver's call returns. It runs while such a driver is used.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...core.process import after_fork
from ...core.runtime import now
from ...core.worker import Worker


class Unanswered(Exception):
    """The server did not answer in time."""


class Watched:
    """``limit``: seconds for one answer; None: as long as it takes. The first is that of its own beginning."""

    def __init__(self, connection: Any, limit: float) -> None:
        self.limit: float | None = limit
        self.is_cut = False
        self._connection = connection
        # The driver may close its own at any moment, and its number may be that of a stranger then.
        self._sock = socket.socket(fileno=os.dup(connection.fileno()))
        _watch.arm(self, limit)

    def cursor(self) -> _Cursor:
        return _Cursor(self, self._connection.cursor())

    @contextmanager
    def within_limit(self) -> Iterator[None]:
        limit = self.limit
        if limit is not None:
            _watch.arm(self, limit)
        try:
            yield
        except Exception as error:
            if self.is_cut:
                raise Unanswered(f"the server did not answer within {limit:.1f} s") from error
            raise
        finally:
            self.disarm()

    def disarm(self) -> None:
        _watch.deadlines.pop(self, None)

    def cut(self) -> None:
        self.is_cut = True
        with suppress(OSError):  # it has ended by itself
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.disarm()
        self._sock.close()
        self._connection.close()

    def notifies(self, timeout: float) -> Iterator[Any]:
        """psycopg2's, as psycopg 3 has them."""
        if self._wait(timeout):
            self._connection.poll()
        while self._connection.notifies:
            yield self._connection.notifies.pop(0)

    def _wait(self, timeout: float | None) -> bool:
        """Whether there is something to read, if only the connection's end."""
        with selectors.DefaultSelector() as selector:  # select() knows no descriptor above 1,023
            selector.register(self._sock, selectors.EVENT_READ)
            return bool(selector.select(timeout))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class WatchedMySQL(Watched):
    """mysqlclient's own limit is that of its beginning, for good: it would end a COMMIT that is waited for, and leave
    it to the server, while the next one is tried beside it. So it reads when there is something to read.
    """

    def cursor(self) -> _Cursor:
        cursor = self._connection.cursor()
        cursor.connection = self  # whose query() it calls
        return _Cursor(self, cursor)

    def query(self, text: bytes) -> None:
        self._connection.send_query(text)
        self._wait(None)
        self._connection.read_query_result()


class _Cursor:
    def __init__(self, watched: Watched, cursor: Any) -> None:
        self._watched, self._cursor = watched, cursor

    def execute(self, *given: Any) -> None:
        with self._watched.within_limit():
            self._cursor.execute(*given)

    def executemany(self, *given: Any) -> None:
        with self._watched.within_limit():
            self._cursor.executemany(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class _Watch:
    def __init__(self) -> None:
        self.deadlines: dict[Watched, float] = {}
        self._next = math.inf
        self._worker = Worker("distlock-watch", self._step, lambda: bool(self.deadlines))

    def arm(self, watched: Watched, seconds: float) -> None:
        until = self.deadlines[watched] = now() + seconds
        if not self._worker.runs:
            self._worker.start()
        elif until < self._next:
            self._worker.wake()

    def _step(self) -> float:
        self._next = math.inf  # one that comes while it looks has it look again
        moment = now()
        for watched, until in list(self.deadlines.items()):
            if until <= moment and self.deadlines.pop(watched, None) is not None:
                watched.cut()
        self._next = min(self.deadlines.copy().values(), default=moment + 1.0)
        return max(self._next - now(), 0.0)


_watch = _Watch()


def _forked() -> None:
    global _watch
    # The other one's deadlines are of connections that the parent uses: a shutdown here would end them there.
    _watch = _Watch()


after_fork(_forked)
