"""asyncio in a world: its own event loop, whose time and whose sockets are the world's.

Everything but the waiting is asyncio's: its tasks, futures and time-outs, and the order in which they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from . import system
from .network import Link, Network
from .world import Thread, World

T = TypeVar("T")


class Loop(asyncio.BaseEventLoop):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._thread: Thread | None = None
        self._stopping = False
        self._selector = self  # asyncio asks it what has come: see select()
        self._come: list[Callable[[], object]] = []
        self._nudged = False
        self.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._world.wrong.append(f"event loop: {context['message']}: {context.get('exception')!r}")

    def time(self) -> float:
        thread = self._thread
        return self._world.time if thread is None else thread.process.machine.boottime()

    def run_forever(self) -> None:
        thread = self._thread = self._world.here()
        thread.loop = self
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                self._run_once()  # type: ignore[attr-defined]
        finally:
            self._stopping = False
            thread.loop = None
            asyncio._set_running_loop(None)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """``asyncio.run``: the main task, then the end of all others and of the loop."""
        try:
            return self.run_until_complete(main)
        finally:
            tasks = sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name().rpartition("-")[2]))
            for task in tasks:
                task.cancel()
            if tasks:
                self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
            self.close()

    # What asyncio's own selector would do.

    def select(self, timeout: float | None) -> list[Callable[[], object]]:
        world = self._world
        world.preempt()
        if not self._come and not self._nudged and timeout != 0:
            world.sleep(timeout)
        self._nudged = False
        come, self._come = self._come, []
        return come

    def _process_events(self, come: list[Callable[[], object]]) -> None:
        for callback in come:
            self.call_soon(callback)

    def _write_to_self(self) -> None:
        self._nudged = True
        if self._thread is not None:
            self._world.wake(self._thread)

    def notify(self, callback: Callable[[], object]) -> None:
        """A socket has something: it is seen when the loop looks at its sockets again."""
        self._come.append(callback)
        if self._thread is not None:
            self._world.wake(self._thread)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str = "", port: int = 0, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        transport = Transport(self, self._world.network, (host, port))
        try:
            await transport.opened
        except BaseException:
            transport.abort()
            raise
        protocol = protocol_factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        return transport, protocol


def _unless_done(future: asyncio.Future[Any], action: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        action(value)


class Transport(asyncio.Transport):
    """The event loop's end of a connection."""

    def __init__(self, loop: Loop, network: Network, address: tuple[str, int]) -> None:
        super().__init__()
        self._loop = loop
        self._inbox = bytearray()
        self._error: OSError | None = None
        self._ended = self._closing = self._told = False
        self._protocol: Any = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self._link: Link = network.connect(network.world.here().process, address, self)

    # The network's side
    def connected(self) -> None:
        self._loop.notify(lambda: _unless_done(self.opened, self.opened.set_result, None))

    def receive(self, data: bytes) -> None:
        self._inbox += data
        self._loop.notify(self._read)

    def broken(self, error: OSError | None) -> None:
        self._error, self._ended = error, True
        self._loop.notify(self._read)

    # The program's side
    def _read(self) -> None:
        if self._error is not None and not self.opened.done():
            self.opened.set_exception(self._error)
            return
        if self._closing:
            return
        data = bytes(self._inbox)
        self._inbox.clear()
        if data:
            self._protocol.data_received(data)
        if self._ended and not self._closing:
            if self._error is None and self._protocol.eof_received():
                return
            self._close(self._error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._link.send(bytes(data))

    def _close(self, error: OSError | None) -> None:
        self._closing = True
        self._link.close()
        if not self._told and self._protocol is not None:
            self._told = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    def close(self) -> None:
        if not self._closing:
            self._close(None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in the running thread of the running world."""
    world = system.running()
    assert world is not None
    return Loop(world).run(main)
