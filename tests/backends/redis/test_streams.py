"""The one connection of an event loop, when it ends at an inconvenient moment: nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, lock
from distlock_web.backends.redis.scripts import NAMES
from distlock_web.backends.redis.scripts.calls import pack_keys
from distlock_web.backends.redis.transport.exchange import Exchange
from distlock_web.backends.redis.transport.loop_connection import LoopConnection
from distlock_web.backends.redis.transport.pipeline import Pipeline
from distlock_web.backends.redis.transport.stream import Stream
from distlock_web.core.registry import registry
from tests.support.callers import unrelated
from tests.support.redis_lock import KEY
from tests.support.waiting import SOON

pytestmark = pytest.mark.usefixtures("redis_store")

CALL = pack_keys("index"), ("", 0, 1)
#: Each way in which a script is sent, and sent again with its source.
WAYS: dict[str, Callable[[Exchange], Awaitable[object]]] = {
    "one": lambda exchange: exchange.run(NAMES, *CALL),
    "two in one write": lambda exchange: Pipeline.over(exchange).run_many(NAMES, [CALL] * 2),
}


def connection_of_this_loop() -> LoopConnection:
    backend: Any = registry().store("default").backend
    connection: LoopConnection = backend.server.loops._by_loop[asyncio.get_running_loop()]
    return connection


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_that_is_closed_between_an_answer_and_the_next_question(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A failover: one task heard READONLY and closed it, another NOSCRIPT, and asked on it for ever."""
    async with lock(KEY):
        pass
    backend: Any = registry().store("default").backend
    exchange: Exchange = backend.server.tasks()
    redis_client.script_flush()
    received = Stream.data_received

    def received_by_two(stream: Stream, data: bytes) -> None:
        received(stream, data)
        monkeypatch.undo()
        stream.close()  # as the other task does, whose turn comes first

    monkeypatch.setattr(Stream, "data_received", received_by_two)
    async with asyncio.timeout(SOON):
        with pytest.raises(BackendUnavailable, match="closed meanwhile"):
            await WAYS[way](exchange)
        async with lock(KEY):
            pass


async def test_a_loop_that_ends_while_all_connections_are_let_go_of() -> None:
    """Under WSGI each async view has its own; the thread that met the failover failed with "Event loop is closed"."""
    async with lock(KEY):
        pass

    class Ending:
        """It ends just after it was asked whether it has."""

        def is_closed(self) -> bool:
            return False

        def call_soon_threadsafe(self, *_: object) -> None:
            raise RuntimeError("Event loop is closed")

    backend: Any = registry().store("default").backend
    connection = connection_of_this_loop()
    stream: Any = connection._stream
    backend.server.loops._by_loop = {Ending(): connection}
    await asyncio.to_thread(lambda: unrelated(KEY).release())
    backend.server._moved()
    assert not backend.server.pool.idle
    stream.close()
    await asyncio.to_thread(lambda: unrelated(KEY).release())
