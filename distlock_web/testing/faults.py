"""What breaks, on purpose: a proxy in front of a server, and processes that can be killed, stopped and continued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ..core.runtime import now
from .history import Event, History, Kind

#: Seconds after which a test gives up waiting for something that has to happen, on a machine that is busy otherwise.
PATIENCE = 60.0


class Proxy:
    """A TCP proxy on a free loopback port: ``with Proxy(server.port) as proxy:`` and connect to ``proxy.url``.

    What it does to the bytes is set by attributes and methods, from any thread, for connections old and new.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = 0
        self.delay = 0.0  #: seconds that every answer is held back
        self.lost = 0  #: answers and messages that were lost as asked
        self.asked: list[bytes] = []  #: what clients sent, in the order in which it came
        self._target = host, port
        self._silent = False
        self._instead: bytes | None = None
        self._doomed: list[tuple[bytes, int]] = []
        self._lose_message = ""
        self._open: set[asyncio.StreamWriter] = set()
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

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._call(self._listen())

    def swallow(self, silent: bool = True) -> None:
        """Accept and read, and never answer, as behind a broken route; ``False`` ends it. What was said is lost."""
        self._silent = silent

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
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

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
        self._through: int | None = None  # of the next answer so many bytes, and then the end

    async def requests(self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        proxy = self._proxy
        while data := await reader.read(65536):
            proxy.asked.append(data)
            if proxy._silent:
                continue
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


class Worker:
    """A process of its own that tells its events on standard output, one JSON object a line (see ``Recorder``)."""

    def __init__(self, actor: str, command: Sequence[str], history: History, env: dict[str, str] | None = None) -> None:
        self.actor = actor
        self._history = history
        self._said: list[Event] = []
        self._silent = False
        self._still_since: float | None = None
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        self._reader = threading.Thread(target=self._read, name=f"fault-reader-{actor}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def times(self, kind: Kind) -> int:
        """How often it has said this until now."""
        with self._changed:
            return sum(event.kind == kind for event in self._said)

    def saw(self, kind: Kind, times: int = 1) -> Event:
        """Wait until the worker has said this so many times; the last of them. ``TimeoutError`` if it never does."""
        until = time.monotonic() + PATIENCE
        with self._changed:
            while len(found := [event for event in self._said if event.kind == kind]) < times:
                if self._silent:
                    raise TimeoutError(f"{self.actor} ended without saying {kind!r}; it said {self._said[-5:]}")
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise TimeoutError(f"{self.actor} did not say {kind!r}; it said {self._said[-5:]}")
        return found[times - 1]

    def go(self) -> None:
        """Let a worker go on that waits for a word on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no handler runs, no ``finally``, no release."""
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        # One that stood still has done nothing since.
        self._history.add(Event(self.actor, "killed", self._still_since or now()))

    def stop(self) -> None:
        """SIGSTOP, and return when the process really stands still: as in a garbage collection, or a frozen machine."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        self._still_since = now()

    def resume(self) -> None:
        self._still_since = None
        os.kill(self.pid, signal.SIGCONT)

    def join(self) -> int:
        """Wait for its end; the exit status."""
        status = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def close(self) -> None:
        """End it, however it stands; harmless if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = Event(**json.loads(line))
            self._history.add(event)
            with self._changed:
                self._said.append(event)
                self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()


def eventually(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait until it is true. ``TimeoutError`` with ``what`` if it never is."""
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"never happened: {what}")
        time.sleep(0.005)
