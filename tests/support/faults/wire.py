"""A TCP proxy that knows where a message ends: what is between a party and a server."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from distlock_web.core.runtime import now
from distlock_web.testing.servers import free_port

from .steps import Fault, Strike

#: Seconds in which a server has done what a client has asked for that has gone.
ANSWERED_WITHIN = 2.0


class Message(NamedTuple):
    kind: str  #: empty: it is not counted, such as a heartbeat
    data: bytes
    #: Of what a client sends: whether the server answers. Of what a server sends: whether that answers a request.
    answered: bool = True


class Dialect(Protocol):
    """One connection's protocol. Both methods are fed what was read, and give what is whole by now, in its order.

    A request is all that a client sends before it waits (of PostgreSQL up to Sync); an answer is all that ends this
    wait. Requests are answered in their order. ``stops_if_left``: a server stops what it does for a client that has
    closed its end, as one of HTTP may.
    """

    def requests(self, data: bytes) -> Sequence[Message]: ...

    def answers(self, data: bytes) -> Sequence[Message]: ...


class Network:
    """The thread and the event loop of all wires of a process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults-network", daemon=True)
        self._thread.start()

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Wire:
    """The way of one party to one server: ``wire.port`` leads to ``port``.

    ``late``, ``later``, ``slow``: seconds for which such a message, or answer, is held, and all that is behind it.
    ``away``: seconds for which a server is away.
    ``alter`` changes what a server sends, where that names other servers. ``front``: in front of each kind, where a
    store has servers of several sorts.
    """

    def __init__(
        self,
        network: Network,
        party: str,
        strike: Strike,
        port: int,
        dialect: Callable[[], Dialect],
        *,
        late: float,
        later: float,
        away: float = 1.0,
        slow: float = 0.1,
        front: str = "",
        alter: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.port = 0
        self.party, self.strike, self.dialect, self.front, self.alter = party, strike, dialect, front, alter
        self.held = {Fault.LATE: late, Fault.LATER: later}
        self.target = port
        self._away = away
        self.slow = slow
        strike.wires.append(self)
        self._network = network
        self._connections: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.leaving: asyncio.Task[None] | None = None
        network.call(self._listen())

    async def _listen(self) -> None:
        while True:
            with suppress(OSError):  # another process of these runs has taken the port since it was looked at
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", free_port())
                break
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._network.call(self._close())

    async def _close(self) -> None:
        self._server.close()
        while self._connections:
            self.cut()
            await asyncio.wait(list(self._connections), timeout=0.1)

    async def go_away(self) -> None:
        """From now on, and for so long, the server is away for all parties."""
        self.strike.away = self.target
        for wire in self.strike.wires:
            if wire.target == self.target:
                wire.cut()
        await asyncio.sleep(self._away)
        self.strike.away = None
        self.strike.end()

    def cut(self) -> None:
        """All connections that are open now."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)
        try:
            if self.strike.away == self.target:
                raise ConnectionError
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, upstream}
        self._open |= ends
        connection = _Connection(self, writer, upstream)
        asking = asyncio.ensure_future(connection.requests(reader))
        answering = asyncio.ensure_future(connection.answers(upstream_reader))
        try:
            # What is late arrives whoever has gone meanwhile; the server's end of the connection ends all.
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            if not connection.broken and not answering.done():
                if not connection.deaf:
                    await connection.is_answered()
                    upstream.write_eof()
                await asyncio.wait((answering,))
        except OSError:
            pass
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
            self._open -= ends
            for end in ends:
                end.transport.abort()


class _Connection:
    def __init__(self, wire: Wire, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._wire, self._client, self._server = wire, client, server
        self._dialect = wire.dialect()
        self._stops_if_left = getattr(self._dialect, "stops_if_left", False)
        #: Of the requests that are not answered yet: what happens to the answer.
        self._pending: deque[Fault | None] = deque()
        self.deaf = self._mute = False  #: nothing that is asked arrives any more; nothing that is answered
        self.broken = False

    async def requests(self, reader: asyncio.StreamReader) -> None:
        wire = self._wire
        while data := await reader.read(65536):
            for message in self._dialect.requests(data):
                fault = wire.strike.meets(wire.party, wire.front + message.kind) if message.kind else None
                if fault is Fault.REQUEST_LOST:
                    self.deaf = True
                if self.deaf:
                    continue
                if fault is Fault.AWAY:
                    wire.leaving = asyncio.ensure_future(wire.go_away())
                if fault in (Fault.CUT_BEFORE, Fault.AWAY):
                    self.broken = True
                    return
                if fault in wire.held:
                    await self._hold(fault)
                if message.answered:
                    self._pending.append(fault)
                self._server.write(message.data)
                if fault is Fault.TWICE:
                    if message.answered:
                        self._pending.append(Fault.TWICE)
                    self._server.write(message.data)
                if fault in wire.held:
                    await self._server.drain()
                    wire.strike.end()
                if fault is Fault.CUT_AFTER and not message.answered:
                    await asyncio.sleep(0.05)
                    self.broken = True
                    return

    async def is_answered(self) -> None:
        """What has come late is done, though nobody waits for it."""
        until = now() + ANSWERED_WITHIN
        while self._stops_if_left and self._pending and now() < until:  # noqa: ASYNC110 - it changes with each answer
            await asyncio.sleep(0.01)

    async def _hold(self, fault: Fault) -> None:
        """What is late waits here. Where the server ends the connection meanwhile it arrives nowhere, and never."""
        try:
            await asyncio.sleep(self._wire.held[fault])
        except asyncio.CancelledError:
            self._wire.strike.end()
            raise

    async def answers(self, reader: asyncio.StreamReader) -> None:
        wire, first = self._wire, True
        while data := await reader.read(65536):
            for message in self._dialect.answers(data):
                if message.answered and self._pending:
                    fault = self._pending.popleft()
                    if fault is Fault.TWICE:  # the first of the two answers goes through
                        first = not first
                        if first:
                            continue
                    if fault is Fault.SLOW:
                        await asyncio.sleep(wire.slow)
                    if fault not in (Fault.ANSWER_LOST, Fault.CUT_AFTER):
                        fault = None
                else:
                    fault = wire.strike.meets(wire.party, f"<{wire.front}{message.kind}")
                if fault is Fault.ANSWER_LOST:
                    self._mute = True
                if fault in (Fault.CUT_BEFORE, Fault.CUT_AFTER):
                    self.broken = True
                    return
                if fault in wire.held:
                    await self._hold(fault)
                if not self._mute:
                    self._client.write(message.data if wire.alter is None else wire.alter(message.data))
                if fault in wire.held:
                    wire.strike.end()
