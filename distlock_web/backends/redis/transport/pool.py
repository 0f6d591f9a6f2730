"""The way of threads to the server: a pool of redis-py's connections, on which scripts are sent as they were packed.

redis-py connects, encrypts and signs in. Its command layer is left out: it costs more than a lock does, and its retries
re-send what must not be re-sent unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.errors import NotSent
from ....core.runtime import THREADS, drive, now
from ....kit.outage import Outage
from ....kit.pool import AllInUse, Pool, Pooled
from .address import RedisAddress
from .driver import fileno_of
from .errors import FAILURES, TIMEOUTS, translated
from .exchange import Reply
from .wire import wire_of


class Connection(Pooled):
    """One connection of a thread, for one exchange at a time. What it raises is one of ``FAILURES``."""

    __slots__ = ("_connection", "_write", "judged", "read", "timeout")

    _pool: ConnectionPool

    def __init__(self, pool: Pool[Any]) -> None:
        super().__init__(pool)
        self._connection: Any = None
        self._write: Callable[[bytes], None]
        self.read: Callable[[float | None], Reply]  #: the next answer: see ``Wire``; its limit is half of the time-out
        self.timeout: float | None = None  #: seconds for each answer; None: the address's
        self.judged = False  #: it is known whether the server answers on another one

    def open(self, timeout: float | None) -> None:
        address = self._pool.address
        self._connection = address.connect(timeout)
        wire = wire_of(self._connection, address.kwargs["socket_timeout"] / 2)
        self._write, self.read = wire.write, wire.read

    async def ask(self, packed: bytes) -> Reply:
        self._write(packed)  # and as `receive`, which would be a call more for every lock
        try:
            return self.read(None if self.timeout is None else self.timeout / 2)
        except TIMEOUTS:
            return self._pool.read_late(self)

    def send(self, packed: bytes, answers: int = 1, wait: bytes | None = None) -> None:
        self._write(packed if wait is None else packed + wait)

    async def receive(self, *, held_up: bool = False) -> Reply:
        try:
            return self.read(None if self.timeout is None else self.timeout / 2)
        except TIMEOUTS:
            return self._pool.read_late(self, held_up)

    async def confirmed(self) -> Reply:
        return await self.receive(held_up=True)

    def fail(self, error: BaseException) -> None:
        self._pool.failed(self, error)

    def fileno(self) -> int:
        """Of its socket; -1: it is closed."""
        return fileno_of(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()


class ConnectionPool(Pool[Connection]):
    """At most ``max_connections``; who finds none free waits ``pool_timeout`` seconds."""

    def __init__(self, address: RedisAddress, outage: Outage, *, patient: bool = False) -> None:
        super().__init__(address.max_connections, address.pool_timeout, Connection)
        self.address = address
        self._outage = outage
        self._patient = patient  #: asks also while the server is silent: for renewals, which have a deadline

    async def open(self, timeout: float | None) -> Connection:
        """The connection that was used last, or a new one. Raises ``DistLockError``."""
        if not self._patient:
            self._outage.refuse_if_silent()
        if timeout is not None:
            timeout = self._outage.seconds_for(timeout)
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = self._open(timeout)
        connection.timeout = timeout
        return connection

    def _open(self, timeout: float | None) -> Connection:
        try:
            return self.borrow(timeout)
        except AllInUse:
            raise NotSent(
                f"{self.address.name}: all {self.size} connections are in use "
                f"(OPTIONS: max_connections; pool_timeout, now {self.address.pool_timeout:g} s)."
            ) from None
        except FAILURES as failure:
            self._in_vain(timeout, failure)
            raise translated(failure, self.address) from failure

    def failed(self, connection: Connection, error: BaseException) -> None:
        """Its answers will not be read. If it broke, those that are idle have most likely broken, too."""
        self.discard(connection)
        if isinstance(error, FAILURES):
            if not connection.judged:
                self._in_vain(connection.timeout, error)
            self.drop_idle()  # the second try must not meet the next of them

    def _in_vain(self, timeout: float | None, error: BaseException) -> None:
        """To connect has timed out, or redis-py's own PING (health_check_interval), or to write."""
        if isinstance(error, TIMEOUTS):
            drive(self._outage.in_vain(error, timeout, THREADS, None))

    def read_late(self, connection: Connection, held_up: bool = False) -> Reply:
        """Half of the time is over. ``held_up``: replicas may hold up the answer."""
        seconds = self._outage.seconds_for(connection.timeout)
        replies: list[Reply] = []

        def comes(within: float) -> bool:
            try:
                replies.append(connection.read(within))
            except TIMEOUTS:
                return False
            return True

        dead = self._outage.overtakes_late(comes, now() + seconds / 2, seconds, held_up)
        if replies:
            return replies[0]
        connection.judged = True
        if dead:
            raise ConnectionError("this connection was dead; on another one the server answers")
        raise TimeoutError(f"no answer within {seconds:g} s")
