"""The way to the server: scripts out, answers in. One for threads, one for event loops.

redis-py connects, encrypts and signs in; after that we write on its socket ourselves. Its command layer costs more
than a lock does (a cycle takes 31 µs on a plain socket, 63 µs through it), and it re-sends what must not be re-sent
unnoticed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias, cast

import hiredis
from redis.exceptions import RedisError

from ....core.errors import BackendUnavailable
from ....core.runtime import now
from ..scripts import PackedKeys, Script
from .address import Address, AsyncDriverConnection
from .errors import Refused, translated

Reply: TypeAlias = Any  # int, bytes or a list of these: what our scripts answer
_PENDING = object()


def _reader() -> hiredis.Reader:
    return hiredis.Reader(protocolError=ConnectionError, replyError=Refused, notEnoughData=_PENDING)


# Threads -------------------------------------------------------------------------------------------------------------


class Connection:
    """One connection of a thread, for one question at a time."""

    __slots__ = ("_connection", "_reader", "_socket", "_timeout", "used")

    def __init__(self, address: Address, timeout: float | None = None) -> None:
        self._connection = cast("Any", address.connect(timeout))
        self._socket = self._connection._sock
        self._socket.settimeout(address.kwargs["socket_timeout"])
        self._reader = _reader()
        self._timeout = address.kwargs["socket_timeout"]
        self.used = now()

    def ask(self, packed: bytes, timeout: float | None = None) -> Reply:
        if timeout is not None:
            self._socket.settimeout(min(timeout, self._timeout))
        self._socket.sendall(packed)
        while (reply := self._reader.gets()) is _PENDING:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if timeout is not None:
            self._socket.settimeout(self._timeout)
        return reply

    def close(self) -> None:
        self._connection.disconnect()


class ConnectionPool:
    """A pool of links: at most ``max_connections``; who finds none free waits ``pool_timeout`` seconds."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._health_check = float(address.kwargs.get("health_check_interval") or 0)
        self._idle: deque[Connection] = deque()
        self._open = 0
        self._waiting = 0
        self._freed = threading.Condition()

    async def run(
        self, script: Script, keys: PackedKeys, args: tuple[str | int, ...] = (), timeout: float | None = None
    ) -> Reply:
        """Send a script, once, and return its answer. After ``BackendUnavailable`` nobody knows whether it ran."""
        link = self._borrow(timeout)
        try:
            reply = link.ask(script.call(keys, args), timeout)
            if isinstance(reply, Refused) and reply.no_script:  # a restart, a failover, SCRIPT FLUSH
                reply = link.ask(script.call(keys, args, by_source=True), timeout)
        except BaseException as error:
            # Also a KeyboardInterrupt or a worker's time limit: the answer would reach the next one who asks here.
            self._discard(link)
            if isinstance(error, OSError | hiredis.HiredisError):
                self._drop_idle()  # most likely dead, too: the second try must not meet the next of them
                raise translated(error, self._address.name) from error
            raise
        self._give_back(link)
        if isinstance(reply, Refused):
            raise translated(reply, self._address.name) from reply
        return reply

    def close(self) -> None:
        self._drop_idle()

    def _borrow(self, timeout: float | None) -> Connection:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._open_or_wait(timeout)
            if not self._health_check or now() - link.used <= self._health_check or self._healthy(link):
                return link

    def _healthy(self, link: Connection) -> bool:
        try:
            if link.ask(b"*1\r\n$4\r\nPING\r\n") == b"PONG":
                return True
        except OSError:
            pass
        except BaseException:
            self._discard(link)
            raise
        self._discard(link)
        return False

    def _open_or_wait(self, timeout: float | None) -> Connection:
        until = now() + self._address.pool_timeout
        with self._freed:
            self._waiting += 1
            try:
                while self._open >= self._address.max_connections:
                    try:
                        return self._idle.pop()
                    except IndexError:  # not asked for beforehand: others take from here without the lock
                        pass
                    left = until - now()
                    if left <= 0:
                        raise BackendUnavailable(
                            f"{self._address.name}: all {self._address.max_connections} connections are in use "
                            f"(OPTIONS: max_connections; pool_timeout, now {self._address.pool_timeout:g} s)."
                        )
                    self._freed.wait(left)
                self._open += 1
            finally:
                self._waiting -= 1
        try:
            return Connection(self._address, timeout)
        except BaseException as error:
            self._closed_one()
            if isinstance(error, RedisError | OSError):
                raise translated(error, self._address.name) from error
            raise

    def _give_back(self, link: Connection) -> None:
        if self._health_check:
            link.used = now()
        self._idle.append(link)
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def _discard(self, link: Connection) -> None:
        link.close()
        self._closed_one()

    def _closed_one(self) -> None:
        with self._freed:
            self._open -= 1
            self._freed.notify()

    def _drop_idle(self) -> None:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:
                return
            self._discard(link)


# Event loops ---------------------------------------------------------------------------------------------------------


class Stream(asyncio.Protocol):
    """One connection of an event loop, shared by its tasks: the questions of one turn of the loop leave in one write.

    A task that is cancelled leaves its answer to be read and dropped: the connection stays usable for the others.
    """

    def __init__(self, connection: AsyncDriverConnection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = _reader()
        self._out: list[bytes] = []
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        writer = connection._writer
        if writer is None:
            raise ConnectionError("the connection was closed while it was opened")
        self._transport: asyncio.WriteTransport = writer.transport
        self._transport.set_protocol(self)

    @property
    def closed(self) -> bool:
        return self._error is not None or self._transport.is_closing()

    def ask(self, packed: bytes) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = self._loop.create_future()
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)
        self._waiting.append((future, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._check_time)
        return future

    def close(self) -> None:
        self.fail(ConnectionError("the connection was closed"))

    def fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self._connection._close()  # type: ignore[no-untyped-call]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    def _flush(self) -> None:
        packed, self._out = b"".join(self._out), []
        if not self.closed:
            self._transport.write(packed)

    def _check_time(self) -> None:
        """One timer for all questions, instead of one each: the oldest tells whether the server still answers."""
        self._timer = None
        if not self._waiting:
            return
        age = self._loop.time() - self._waiting[0][1]
        if age >= self._timeout:
            self.fail(TimeoutError(f"no answer within {self._timeout:g} s"))
        else:
            self._timer = self._loop.call_later(self._timeout - age, self._check_time)

    # asyncio.Protocol
    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _PENDING:
                future, _ = self._waiting.popleft()
                if not future.done():
                    future.set_result(reply)
        except (ConnectionError, IndexError) as error:
            self.fail(ConnectionError(f"the server's answer makes no sense: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(error or ConnectionError("the server closed the connection"))


class LoopConnection:
    """The stream of one event loop: opened when it is needed, again when it broke, closed with the loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stream: Stream | None = None
        self._opening: asyncio.Task[Stream] | None = None
        self._loop_finalizer: AsyncGenerator[None, None] | None = None

    async def run(
        self, script: Script, keys: PackedKeys, args: tuple[str | int, ...] = (), timeout: float | None = None
    ) -> Reply:
        """Send a script, once, and return its answer. After ``BackendUnavailable`` nobody knows whether it ran."""
        try:
            stream = self._stream
            if stream is None or stream.closed:
                stream = await self._open()
            reply = await stream.ask(script.call(keys, args))
            if isinstance(reply, Refused) and reply.no_script:
                reply = await stream.ask(script.call(keys, args, by_source=True))
        except (OSError, RedisError) as error:
            raise translated(error, self._address.name) from error
        if isinstance(reply, Refused):
            raise translated(reply, self._address.name) from reply
        return reply

    async def _open(self) -> Stream:
        """Open one stream, however many tasks ask for it; one that is cancelled does not stop the others."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _connect(self) -> Stream:
        connection = await self._address.aconnect()
        self._stream = Stream(connection, self._address.kwargs["socket_timeout"])
        if self._loop_finalizer is None:
            self._loop_finalizer = self._close_with_loop()
            await anext(self._loop_finalizer)
        return self._stream

    def _opened(self, task: asyncio.Task[Stream]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # seen: each task that asked gets it from its own await

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        # A loop that ends closes its asynchronous generators; that is the only word it gives. Under WSGI every async
        # view has a loop of its own, and a connection that outlived it would be lost, with a ResourceWarning.
        try:
            yield
        finally:
            self.close()
            await asyncio.sleep(0)  # the transport closes its socket on the loop's next turn

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
