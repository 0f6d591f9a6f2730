"""One node of a quorum: a Redis server of its own."""

from __future__ import annotations

import logging
from collections import deque
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from ...core.backend import Claim
from ...core.config import StoreConfig
from ...core.errors import ConfigurationError, DistLockError
from ...core.runtime import drive
from ..redis.scripts import PackedKeys, pack_keys
from ..redis.transport.address import address
from ..redis.transport.pool import ConnectionPool
from ..redis.transport.server import Server
from .scripts import RELEASE

logger = logging.getLogger("distlock_web")


class Node:
    """A member of the quorum ``who`` says: its own name, all names, and the delay after a loss of data."""

    def __init__(self, config: StoreConfig) -> None:
        self.address = address(config)
        self.server = Server(self.address, self._cancel)
        self.outage = self.server.outage
        self.timeout = self.server.answer_timeout  #: seconds that an answer may take
        self.index = f"{config.prefix}~held"  # no lock's name has a '~' there: keys.py escapes it
        self.quorum_key = f"{config.prefix}~quorum"
        self.who = ""
        self.no_vote: DistLockError | None = None  #: why it would not vote for us when it was last heard of
        #: How far its clock (µs) is ahead of ``now()``, as last heard; None: not heard yet.
        self.ahead_us: int | None = None
        #: Of threads; True: of the renewals, which also ask a server that counts as silent.
        self.pools: dict[bool, ConnectionPool] = {False: self.server.pool, True: self.server.renewal_pool}
        #: Channels on which answers are to come that nobody waits for any more, and the tokens voted for so.
        self.left: dict[bool, deque[Any]] = {False: deque(), True: deque()}
        self.unheard: set[str] = set()
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

    def warn(self, error: ConfigurationError) -> None:
        """Said once: while the others suffice nobody else would hear of it."""
        if str(error) != self._warned:
            self._warned = str(error)
            logger.warning("A node of the quorum has no vote: %s", error)

    def close(self) -> None:
        for patient, pool in self.pools.items():
            while self.left[patient]:
                pool.discard(self.left[patient].pop().connection)
        self.server.close()

    def _cancel(self, claim: Claim, _: int) -> None:
        """Of one who waited here, and whose event loop has ended."""
        drive(self.server.threads().run(RELEASE, self.keys(claim.name), (claim.token, "", 0)))


@lru_cache(maxsize=4096)
def _packed(*names: str) -> PackedKeys:
    """Packed once: what is locked often is sent often."""
    return pack_keys(*names, *map(waiting, names[2:]))


def waiting(name: str) -> str:
    """The key of those who wait for a lock."""
    return f"{{{name}}}:waiting"
