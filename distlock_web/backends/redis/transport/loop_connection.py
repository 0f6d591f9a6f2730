"""The way of event loops to the server: one connection for each loop, opened in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress

from ....core.errors import BackendUnavailable
from ....core.runtime import TASKS, lives_for_one_call
from ....kit.outage import Outage
from .address import RedisAddress, is_fake
from .errors import FAILURES, TIMEOUTS, translated
from .exchange import Line, Lines
from .stream import Stream, StreamTurn


class LoopConnections:
    """Of all event loops of the process. None uses another's."""

    def __init__(self, address: RedisAddress, outage: Outage, blocking: Lines) -> None:
        self._address = address
        self._outage = outage
        self._blocking = blocking
        self._changing = threading.RLock()  # reentrant: garbage that is collected inside may release a lock of its own
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopConnection] = {}

    def open(self, timeout: float | None) -> Awaitable[Line]:
        loop = asyncio.get_running_loop()
        connection = self._by_loop.get(loop)
        if connection is None:
            # Under WSGI it may block its thread, which has nothing else to do; a fake blocks none.
            if lives_for_one_call(loop) or is_fake(self._address.connection_class):
                return self._blocking.open(timeout)
            connection = self._add(loop)
        return connection.open(timeout)

    def _add(self, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        with self._changing:
            for closed in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[closed]
            connection = self._by_loop[loop] = LoopConnection(self._address, self._outage)
        return connection

    def drop(self) -> None:
        """Let go of every connection, from any thread. The next request opens another."""
        with self._changing:
            connections = list(self._by_loop.items())
        for loop, connection in connections:
            connection.close_soon(loop)


class LoopConnection:
    """The stream of one event loop: opened when it is needed, again when it broke, closed with the loop."""

    def __init__(self, address: RedisAddress, outage: Outage) -> None:
        self._address = address
        self._outage = outage
        self._stream: Stream | None = None
        self._opening: asyncio.Task[Stream] | None = None
        self._loop_finalizer: AsyncGenerator[None, None] | None = None

    async def open(self, timeout: float | None) -> Line:
        self._outage.refuse_if_silent()
        stream = self._stream
        if stream is None or stream.closed:
            try:
                stream = await self._open()
            except FAILURES as error:
                raise translated(error, self._address) from error
        return StreamTurn(stream)

    async def _open(self) -> Stream:
        """Open one stream, however many tasks ask for it; one that is cancelled does not stop the others."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        try:
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._opening is not None and self._opening.cancelled() and not (task and task.cancelling()):
                raise BackendUnavailable(f"{self._address.name}: the event loop ends.") from None
            raise

    async def _connect(self) -> Stream:
        timeout, asked = self._address.kwargs["socket_timeout"], list[float]()
        timer = asyncio.get_running_loop().call_later(timeout / 2, lambda: asked.append(self._outage.ask()))
        try:
            connection = await self._address.aconnect()
        except TIMEOUTS as error:
            # Where it answers it was our event loop that was late.
            await self._outage.in_vain(error, None, TASKS, asked[0] if asked else None)
            raise
        finally:
            timer.cancel()
        self._stream = Stream(connection, timeout, self._outage)
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
        """Let go of the stream, in its loop. A later use opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def close_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """The same from any thread. The next request opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(RuntimeError):  # the loop has ended, and the connection with it
                loop.call_soon_threadsafe(stream.close)
