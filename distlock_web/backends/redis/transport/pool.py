"""The way of threads to the server: a pool of redis-py's connections, on which scripts are sent as they were packed.

redis-py connects, encrypts and signs in. Its command layer is left out: it costs more than a lock does, and its retries
re-send what must not be re-sent unnoticed.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ....core.errors import BackendUnavailable
from ....core.outage import Outage
from ....core.runtime import THREADS, ThreadParker, drive, now
from .address import Address
from .driver import fileno_of
from .errors import FAILURES, TIMEOUTS, translated
from .exchange import Confirmation, Reply
from .wire import wire_of

#: Seconds after which a thread that waits for a connection looks by itself: whoever should wake it may be gone.
MAX_SLEEP = 0.05
#: Seconds between two looks of a thread in doubt, whether its own answer is there, or somebody else's.
LOOK = 0.02


class Connection:
    """One connection of a thread, for one exchange at a time. What it raises is one of ``FAILURES``."""

    __slots__ = ("__weakref__", "_connection", "_pool", "_write", "asked", "batch", "read", "timeout", "was_idle")

    def __init__(self, pool: ConnectionPool, batch: object) -> None:
        self._pool = pool
        self._connection: Any = None
        self._write: Callable[[bytes], None]
        self.read: Callable[[float | None], Reply]  #: the next answer: see ``Wire``; its limit is half of the time-out
        self.batch = batch  #: those that are let go of together
        self.timeout: float | None = None  #: seconds for each answer; None: the address's
        self.asked: float | None = None  #: when the server was asked on another one: this one is in doubt
        self.was_idle = False  #: it was open already: it may have ended meanwhile

    def connect(self, address: Address, timeout: float | None) -> None:
        self._connection = address.connect(timeout)
        wire = wire_of(self._connection, address.kwargs["socket_timeout"] / 2)
        self._write, self.read = wire.write, wire.read

    def send(self, packed: bytes, answers: int = 1, confirmation: Confirmation | None = None) -> None:
        if confirmation is not None:
            packed += confirmation(self.timeout)
        self._write(packed)

    async def receive(self) -> Reply:
        try:
            return self.read(None if self.timeout is None else self.timeout / 2)
        except TIMEOUTS:
            return self._pool.read_in_doubt(self)

    async def confirmed(self) -> Reply:
        try:
            return self.read(None if self.timeout is None else self.timeout / 2)
        except TIMEOUTS:
            return self._pool.read_in_doubt(self, held_up=True)

    def end(self, *, usable: bool = True) -> None:
        pool = self._pool
        if not usable or self.batch is not pool.batch:
            pool.discard(self)
            return
        self.was_idle = True
        pool.idle.append(self)
        if self.batch is not pool.batch:  # dropped meanwhile, by one that may have come before it was idle
            pool.drop_idle()
        if pool.waiting:
            pool.wake_one()

    def fail(self, error: BaseException) -> None:
        self._pool.failed(self, error)

    def fileno(self) -> int:
        """Of its socket; -1: it is closed."""
        return fileno_of(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()


def ping(address: Address) -> None:
    """Ask on a connection of its own whether the server answers. Raises ``DistLockError`` if it does not."""
    try:
        connection: Any = address.connect()
        try:
            # A script, as every request is: a server that holds those back (CLIENT PAUSE, a proxy) may answer a PING.
            connection.send_command("EVAL", "return 1", "0")
            connection.read_response()
        finally:
            connection.disconnect()
    except FAILURES as error:
        raise translated(error, address) from error


class ConnectionPool:
    """At most ``max_connections``; who finds none free waits ``pool_timeout`` seconds.

    The pool has weak references to what it has given out: a connection whose thread was interrupted anywhere (a
    worker's time limit, Ctrl-C) closes itself and leaves its place.
    """

    def __init__(self, address: Address, outage: Outage, *, patient: bool = False) -> None:
        self._address = address
        self._outage = outage
        self._patient = patient  #: asks also while the server is silent: for renewals, which have a deadline
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._opening = threading.RLock()  # reentrant: garbage that is collected inside may release a lock of its own
        self.idle: deque[Connection] = deque()
        self.batch = object()  # of the connections that are opened now
        self.waiting: deque[ThreadParker] = deque()

    async def open(self, timeout: float | None) -> Connection:
        """The connection that was used last, or a new one. Raises ``DistLockError``."""
        if not self._patient:
            self._outage.refuse_if_silent()
        if timeout is not None:
            timeout = min(timeout, self._address.kwargs["socket_timeout"])
        try:
            connection = self.idle.pop()
        except IndexError:
            connection = self._open_or_wait(timeout)
        connection.timeout = timeout
        return connection

    def failed(self, connection: Connection, error: BaseException) -> None:
        """Its answers will not be read. If it broke, those that are idle have most likely broken, too."""
        self.discard(connection)
        if isinstance(error, FAILURES):
            self._waited_in_vain(connection, error)
            self.drop_idle()  # the second try must not meet the next of them

    def _waited_in_vain(self, connection: Connection, error: BaseException) -> None:
        """The server is silent, unless it answers on another connection, or was given less time than it has."""
        most = self._address.kwargs["socket_timeout"]
        if not isinstance(error, TIMEOUTS) or (connection.timeout or math.inf) < most:
            return
        asked = connection.asked
        if asked is None:  # to connect has timed out, or redis-py's own PING (health_check_interval)
            asked = self._outage.ask()
            drive(self._outage.answers(asked, most / 2, THREADS))
        if not self._outage.answered(asked):
            self._outage.begin(error)

    def read_in_doubt(self, connection: Connection, held_up: bool = False) -> Reply:
        """Half of the time is over. If the server answers on another connection and not on this one, this is dead.

        ``held_up``: replicas may hold up the answer.
        """
        asked = connection.asked = self._outage.ask()
        until = asked + (connection.timeout or self._address.kwargs["socket_timeout"]) / 2
        answered = False
        while (left := until - now()) > 0 and (held_up or not answered):
            answered = self._outage.answered(asked)  # before it is read once more: what was sent first comes first
            try:
                reply = connection.read(min(left, LOOK))
            except TIMEOUTS:
                continue
            connection.asked = None
            return reply
        if self._outage.answered(asked):
            raise ConnectionError("this connection was dead; on another one the server answers")
        raise TimeoutError(f"no answer within {2 * (until - asked):g} s")

    def drop(self) -> None:
        """Let go of every connection: of those in use when they are given back."""
        self.batch = object()
        self.drop_idle()

    def drop_idle(self) -> None:
        while self.idle:
            try:
                self.discard(self.idle.pop())
            except IndexError:
                return

    def _open_or_wait(self, timeout: float | None) -> Connection:
        until = now() + self._address.pool_timeout
        while (connection := self._reserve()) is None:
            if (idle := self._wait_for_idle(until - now())) is not None:
                return idle
        connection.timeout = timeout
        try:
            connection.connect(self._address, timeout)
        except BaseException as error:
            self.discard(connection)
            if isinstance(error, FAILURES):
                self._waited_in_vain(connection, error)
                raise translated(error, self._address) from error
            raise
        return connection

    def _reserve(self) -> Connection | None:
        """A place for one connection more; None: all are taken."""
        connection = Connection(self, self.batch)
        with self._opening:
            if len(self._open) >= self._address.max_connections:
                return None
            self._open.add(connection)
        return connection

    def _wait_for_idle(self, left: float) -> Connection | None:
        if left <= 0:
            error = BackendUnavailable(
                f"{self._address.name}: all {self._address.max_connections} connections are in use "
                f"(OPTIONS: max_connections; pool_timeout, now {self._address.pool_timeout:g} s)."
            )
            error.nothing_done = True
            raise error
        parker = ThreadParker()
        self.waiting.append(parker)
        try:
            if not self.idle:  # else it was given back meanwhile
                drive(parker.park(min(left, MAX_SLEEP)))
            return self.idle.pop()
        except IndexError:
            return None
        finally:
            try:
                self.waiting.remove(parker)
            except ValueError:  # it was woken
                pass

    def discard(self, connection: Connection) -> None:
        """It broke, or its answers will not be read."""
        self._open.discard(connection)
        connection.close()
        self.wake_one()

    def wake_one(self) -> None:
        if self.waiting:
            try:
                self.waiting.popleft().unpark()
            except IndexError:  # somebody else has just woken the last one
                pass
