"""One node of a quorum: a Redis server of its own, the ways to ask it, and whether it can be asked now."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol
from urllib.parse import quote

from ...core.config import StoreConfig
from ...core.errors import BackendUnavailable, ConfigurationError
from ...core.outage import Outage
from ..redis.scripts import PackedKeys, pack_keys
from ..redis.transport.address import Address, address
from ..redis.transport.exchange import Exchange
from ..redis.transport.loop_connection import LoopConnection
from ..redis.transport.pool import ConnectionPool, ping
from ..redis.transport.replicas import Replicas

logger = logging.getLogger("distlock_web")


class Owed(Protocol):
    """A question whose answer nobody waits for."""

    def is_over(self) -> bool:
        """Whether its answer has come, or its time is over. Does not wait."""


class Node:
    """A member of the quorum ``who`` says: its own name, all names, and the delay after a loss of data."""

    def __init__(self, config: StoreConfig) -> None:
        self.address: Address = address(config)
        self.timeout = float(self.address.kwargs["socket_timeout"])  #: seconds that an answer may take
        self.index = f"{config.prefix}~held"  # no lock's name has a '~' there: keys.py escapes it
        self.quorum_key = f"{config.prefix}~quorum"
        self.who = ""
        self.outage = Outage(self.address.name, partial(ping, self.address))
        self._pools = {patient: ConnectionPool(self.address, self.outage, patient=patient) for patient in (False, True)}
        self._replicas = Replicas(self.address, self.outage.look)
        self._streams: dict[asyncio.AbstractEventLoop, LoopConnection] = {}
        #: How far its clock (µs) is ahead of ``now()``, as last heard; None: not heard yet.
        self.ahead_us: int | None = None
        self._owed: deque[Owed] = deque()
        self._warned = ""

    def __str__(self) -> str:
        return self.address.name

    @property
    def member(self) -> str:
        """Its name in the quorum. Every process has to call it so: a name, and no password."""
        kwargs = self.address.kwargs
        server = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        return quote(f"{server}/{kwargs.get('db', 0)}", safe="/:[]")

    def keys(self, *names: str) -> PackedKeys:
        """Of a script on one lock, or on none."""
        return _packed(self.quorum_key, self.index, *names)

    def pool(self, patient: bool) -> ConnectionPool:
        """The connections of threads; ``patient``: of the renewals, which also ask a server that is silent."""
        return self._pools[patient]

    def stream(self) -> LoopConnection:
        """The connection of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._streams.get(loop)
        if found is None:
            for closed in [other for other in list(self._streams) if other.is_closed()]:
                self._streams.pop(closed, None)
            found = self._streams[loop] = LoopConnection(self.address, self.outage)
        return found

    def exchange(self) -> Exchange:
        """How the tasks of the running event loop ask."""
        return Exchange(self.stream(), self.address, self._replicas, _stays)

    def refuse(self, *, slow: bool = True) -> None:
        """``BackendUnavailable`` at once where it cannot be asked now: a minority costs nobody a time-out each."""
        self.outage.refuse_if_silent()
        if slow and self._owed and not self._is_paid():
            raise BackendUnavailable(f"{self} is slow: it has not answered the last question yet.")

    @property
    def is_owing(self) -> bool:
        """Something that it was asked may be done yet, after what it is asked now."""
        return bool(self._owed)

    def is_silent(self) -> bool:
        """Whether it is known to be. It may be slow, and not silent."""
        self._is_paid()
        return self.outage.silent

    def owes(self, question: Owed) -> None:
        """Nobody waits for this answer any more, and until it has come nobody shall wait for another one."""
        self._owed.append(question)

    def _is_paid(self) -> bool:
        while self._owed:
            try:
                question = self._owed.popleft()
            except IndexError:  # another thread looks
                break
            if not question.is_over():
                self._owed.appendleft(question)
                return False
        return True

    def warn(self, error: ConfigurationError) -> None:
        """Said once: while the others suffice nobody else would hear of it."""
        if str(error) != self._warned:
            self._warned = str(error)
            logger.warning("A node of the quorum has no vote: %s", error)

    def failed(self, error: BaseException) -> None:
        """It was waited for in vain, or refuses connections: it is asked again by a thread of its own."""
        self.outage.begin(error)

    def later(self, work: Callable[[], None], within: float) -> None:
        """Do this when the node can be asked, and not if that is more than ``within`` seconds from now."""
        self.outage.postpone(work, after=0.0, within=within)

    def close(self) -> None:
        self.outage.close()
        for pool in self._pools.values():
            pool.drop()
        for loop, stream in list(self._streams.items()):
            stream.close_soon(loop)


@lru_cache(maxsize=4096)
def _packed(*names: str) -> PackedKeys:
    """Packed once: what is locked often is sent often."""
    return pack_keys(*names, *map(waiting, names[2:]))


def waiting(name: str) -> str:
    """The key of those who wait for a lock."""
    return f"{{{name}}}:waiting"


def _stays() -> None:
    """A node is one server: its address leads to no other. A replica there is an error like any other."""
