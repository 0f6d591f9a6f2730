"""A TCP proxy in front of a server: it delays, cuts, swallows, and loses an answer that was asked for."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any

from distlock_web.testing.servers import free_port


class Proxy:
    """A TCP proxy on a free loopback port: ``with Proxy(server.port) as proxy:`` and connect to ``proxy.url``.

    What it does to the bytes is set by attributes and methods, from any thread, for connections old and new.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = 0
        self.delay = 0.0  #: seconds that every answer is held back
        self.delay_questions = 0.0  #: seconds that every question is held back
        self.lost = 0  #: answers and messages that were lost as asked
        self.asked: list[bytes] = []  #: what clients sent, in the order in which it came
        self._target = host, port
        self._silent = False
        self._instead: bytes | None = None
        self._doomed: list[tuple[bytes, int]] = []
        self._lose_message = ""
        self._open: set[asyncio.StreamWriter] = set()
        self._connections: list[_Connection] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Break all connections that are open now."""
        self._call(self._cut())

    def refuse(self) -> None:
        """Break all connections and refuse new ones, as a host does on which nobody listens."""
        self._call(self._stop())

    def lead_to(self, port: int) -> None:
        """New connections reach this port of the host; those that are open stay where they are."""
        self._target = self._target[0], port

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._call(self._listen())

    def swallow(self, silent: bool = True) -> None:
        """Accept and read, and never answer, as behind a broken route; ``False`` ends it. What was said is lost."""
        self._silent = silent

    def forget(self) -> None:
        """Never answer on the connections that are open now, as behind a firewall that has dropped idle ones."""
        for connection in self._connections:
            connection.forgotten = True

    def answer(self, instead: bytes | None) -> None:
        """Answer this to whatever a client sends, without asking the server; ``None`` ends it."""
        self._instead = instead

    def lose_answer(self, to: bytes, through: int = 0) -> None:
        """Of the answer to the next request that contains ``to`` let some bytes through, then break the connection.

        The server has done what it was asked; the client cannot know. Called n times: the next n requests.
        """
        self._doomed.append((to, through))

    def lose_message(self, *, cut: bool) -> None:
        """Lose the next message to a subscriber; with ``cut`` its connection breaks, else nothing shows the loss."""
        self._lose_message = "cut" if cut else "drop"

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        # Of the system's own choice nobody else may have it while we refuse: any client's connection could take it.
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port or free_port())
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        server, self._server = self._server, None
        for listening in server.sockets if server else ():
            self._loop.remove_reader(listening.fileno())  # asyncio forgets what it accepts while the server closes
        quiet = 0  # turns of the loop: what was accepted is served, and what breaks is closed, in one of the next
        while quiet < 3:
            await self._cut()
            await asyncio.sleep(0)
            quiet = 0 if self._open or asyncio.all_tasks() != {asyncio.current_task()} else quiet + 1
        if server:
            server.close()

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.gather(*list(self._serving), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        connection = _Connection(self, writer)
        self._connections.append(connection)
        self._open.add(writer)
        try:
            upstream_reader, upstream = await asyncio.open_connection(*self._target)
        except OSError:
            self._open.discard(writer)
            writer.transport.abort()
            return
        self._open.add(upstream)
        try:
            await _first(connection.requests(reader, upstream), connection.answers(upstream_reader))
        finally:
            for end in (writer, upstream):
                self._open.discard(end)
                end.transport.abort()


class _Connection:
    """One client's connection through the proxy."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self.forgotten = False
        self._through: int | None = None  # of the next answer so many bytes, and then the end

    async def requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        proxy = self._proxy
        while data := await reader.read(65536):
            proxy.asked.append(data)
            if proxy._silent or self.forgotten:
                continue
            if proxy.delay_questions:
                await asyncio.sleep(proxy.delay_questions)
            if proxy._instead is not None:
                self._client.write(proxy._instead)
                continue
            for doomed in proxy._doomed:
                if doomed[0] in data:
                    proxy._doomed.remove(doomed)
                    self._through = doomed[1]
                    break
            upstream.write(data)

    async def answers(self, reader: asyncio.StreamReader) -> None:
        proxy = self._proxy
        while data := await reader.read(65536):
            if self._through is not None:
                self._client.write(data[: self._through])
                await asyncio.sleep(0.01)  # or the end would overtake what was let through
                proxy.lost += 1
                return
            if proxy._lose_message and b"\r\n$7\r\nmessage\r\n" in data:
                how, proxy._lose_message = proxy._lose_message, ""
                proxy.lost += 1
                if how == "cut":
                    return
                continue
            if proxy.delay:
                await asyncio.sleep(proxy.delay)
            if not proxy._silent:
                self._client.write(data)


async def _first(*pumps: Any) -> None:
    """Run both directions until one of them ends; a connection that breaks is what this module is for."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
