"""Locks in Redis (6.2 or newer) or Valkey: ``"BACKEND": "redis"``. See docs/redis.md."""

from __future__ import annotations

import asyncio
import threading

from ...core.backend import Capabilities
from ...core.config import StoreConfig
from ...core.runtime import TASKS, THREADS
from .port import RedisPort
from .transport.address import address
from .transport.listener import Listener
from .transport.pool import ConnectionPool, LoopConnection


class RedisBackend:
    """One server: connections for threads (a pool), for each event loop (one), for renewals, and one to listen on."""

    capabilities = Capabilities(fencing=True, queue=True, listing=True, min_expire=0.01)

    settings = frozenset({"LOCATION", "CACHE", "OPTIONS"})

    def __init__(self, config: StoreConfig) -> None:
        self._address = address(config)
        self._index = f"{config.prefix}~held"  # no lock's name has a '~' there: keys.py escapes it
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._listener = Listener(self._address)
        self._pool = ConnectionPool(self._address)
        self._renewal_pool = ConnectionPool(self._address)
        self._loops: dict[asyncio.AbstractEventLoop, tuple[LoopConnection, RedisPort]] = {}
        self._sync_port = RedisPort(self._pool, self._listener, THREADS, self._index)
        self._renewal_port = RedisPort(self._renewal_pool, self._listener, THREADS, self._index)

    def sync_port(self) -> RedisPort:
        return self._sync_port

    def renewal_port(self) -> RedisPort:
        return self._renewal_port

    def async_port(self) -> RedisPort:
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            with self._lock:
                for closed in [other for other in self._loops if other.is_closed()]:
                    del self._loops[closed]
                way = LoopConnection(self._address)
                found = self._loops[loop] = way, RedisPort(way, self._listener, TASKS, self._index)
        return found[1]

    def close(self) -> None:
        self._listener.close()
        self._pool.close()
        self._renewal_pool.close()
        with self._lock:
            loops, self._loops = self._loops, {}
        for loop, (way, _) in loops.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(way.close)

    def after_fork(self) -> None:
        # The sockets are the parent's, too: redis-py closes a child's copy without saying good-bye to the server.
        self._start()
