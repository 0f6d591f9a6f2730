"""Locks in Redis (6.2 or newer) or Valkey: ``"BACKEND": "redis"``. See docs/redis.md."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from ...core.backend import Capabilities, Claim
from ...core.config import StoreConfig
from ...core.findings import Finding
from ...core.outage import Outage
from ...core.runtime import TASKS, THREADS, Runtime, drive, lives_for_one_call
from .diagnose import diagnose
from .port import PLACE_OUTLIVES, RedisPort, ScriptRunner
from .sentinel import sentinel_address
from .transport.address import Address, address
from .transport.clock import ServerClock
from .transport.listener import Listener
from .transport.loop_connection import LoopConnection
from .transport.pool import ConnectionPool, ping

#: Seconds for which a lock is given back that was handed to nobody; how long its lease is is not known.
GIVE_UP_WITHIN = 3600.0


class RedisBackend:
    """One server, or the master that sentinels name.

    Connections for threads (a pool), for each event loop (one), for renewals, and one to listen on.
    """

    capabilities = Capabilities(fencing=True, waiting=True, queue=True, transfer=True, listing=True, min_expire=0.01)
    settings = frozenset({"LOCATION", "CACHE", "OPTIONS"})
    _port_class = RedisPort

    def __init__(self, config: StoreConfig) -> None:
        self._address = self._address_of(config)
        self._index = f"{config.prefix}~held"  # no lock's name has a '~' there: keys.py escapes it
        self._answer_timeout = float(self._address.kwargs["socket_timeout"])
        self._address.follow(self._moved)
        self._start()

    def _address_of(self, config: StoreConfig) -> Address:
        return sentinel_address(config) or address(config)

    def _start(self) -> None:
        self._lock = threading.RLock()  # reentrant: garbage that is collected inside may release a lock of its own
        self._clock = ServerClock()
        self._outage = Outage(self._address.name, partial(ping, self._address))
        self._listener = Listener(self._address, self._give_up)
        self._pool = ConnectionPool(self._address, self._outage, self._moved)
        self._renewal_pool = ConnectionPool(self._address, self._outage, self._moved, patient=True)
        self._loops: dict[asyncio.AbstractEventLoop, tuple[LoopConnection, RedisPort]] = {}
        self._sync_port = self._port(self._pool, THREADS)
        self._renewal_port = self._port(self._renewal_pool, THREADS)

    def _port(self, runner: ScriptRunner, runtime: Runtime) -> RedisPort:
        return self._port_class(
            runner,
            runtime,
            self._listener,
            self._clock,
            self._index,
            self._answer_timeout,
            self._postpone,
            confirm=self._address.min_replicas > 0,
        )

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
                connection = LoopConnection(self._address, self._outage, self._moved, self._pool_for(loop))
                found = self._loops[loop] = connection, self._port(connection, TASKS)
        return found[1]

    def _pool_for(self, loop: asyncio.AbstractEventLoop) -> ConnectionPool | None:
        """The pool on which this loop may block its thread: under WSGI that thread has nothing else to do."""
        return self._pool if lives_for_one_call(loop) else None

    def close(self) -> None:
        self._outage.close()
        self._listener.close()
        self._let_go()

    def diagnose(self) -> list[Finding]:
        return diagnose(self._address)

    def _moved(self) -> None:
        """The address leads to another server now, and the open connections do not: let go of all of them."""
        self._let_go()
        self._listener.reconnect()

    def _let_go(self) -> None:
        self._pool.drop()
        self._renewal_pool.drop()
        with self._lock:
            loops = list(self._loops.items())
        for loop, (connection, _) in loops:
            connection.close_soon(loop)

    def _postpone(self, claim: Claim, after: float) -> None:
        """Cancel the claim when the server answers. It is kept until its place in the queue has ended by itself."""
        within = after + claim.expire + PLACE_OUTLIVES
        self._outage.postpone(partial(self._cancel, claim), after=after, within=within)

    def _give_up(self, claim: Claim, fence: int) -> None:
        """Cancel what a waiter was granted that has gone without a word; with a fence, that grant alone."""
        self._outage.postpone(partial(self._cancel, claim, fence), after=0.0, within=GIVE_UP_WITHIN)

    def _cancel(self, claim: Claim, fence: int = 0) -> None:
        drive(self._sync_port.cancel_now(claim, fence=fence))
