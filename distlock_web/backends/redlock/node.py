"""One node of a quorum: a Redis server of its own.

Each node stores who it is, with whom it votes, and the moment of its birth; every vote is asked for in these words, and
a node that stores others, or none, has no vote. So the vote itself notices a restart without data, a flush, a server
that was exchanged for another, one server under two names, and a process with another list of nodes. The birth is by
the clocks of the majority, so a node whose own clock was set cannot vote before its delay is over.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from ...core.backend import Claim
from ...core.config import StoreConfig
from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ...core.runtime import drive, now
from ..redis.scripts.calls import PackedKeys, pack_keys
from ..redis.transport.address import address
from ..redis.transport.pool import ConnectionPool
from ..redis.transport.server import Server
from .scripts import RELEASE
from .settings import OPTIONS

logger = logging.getLogger("distlock_web")

#: µs that the nodes' clocks may be apart: those that are further from the others have no vote.
APART_US = 1_000_000
#: Seconds until a node is told again who it is that could not be told.
FOUNDED_AGAIN_AFTER = 1.0

FORGOT, OTHER, YOUNG = -1, -2, -3  #: what a node answers that has no vote


class Node:
    """A member of the quorum ``who`` says: its own name, all names, and the delay after a loss of data."""

    def __init__(self, config: StoreConfig) -> None:
        self.address = address(config, OPTIONS)
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
        #: Channels on which answers are to come that no caller waits for any more, and the tokens voted for so.
        self.left: dict[bool, deque[Any]] = {False: deque(), True: deque()}
        self.unheard: set[str] = set()
        self.unsent: set[str] = set()  #: tokens of votes that no caller waits for, and that wait for a connection still
        self._warned = ""
        self.unfounded = ""  #: why it could not be told who it is; until then it is not told again:
        self.unfounded_until = 0.0

    def __str__(self) -> str:
        return self.address.name

    @property
    def member(self) -> str:
        """Its name in the quorum. Every process has to call it so: a name, and no password."""
        kwargs = self.address.kwargs
        server = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        return quote(f"{server}/{kwargs.get('db', 0)}", safe="/:[]")

    def keys(self, *names: str) -> PackedKeys:
        """Of a script on these locks, or on none."""
        pack = _packed if len(names) == 1 else pack_keys  # packed once: what is locked often is sent often
        return pack(self.index, self.quorum_key, *names)

    def not_founded(self, why: str) -> None:
        """It could not be told who it is. Each acquisition would try that again, and wait for every node."""
        if not self.unfounded:
            logger.warning("A node of the quorum has no vote: %s cannot be told which node it is: %s.", self, why)
        self.unfounded, self.unfounded_until = why, now() + FOUNDED_AGAIN_AFTER

    def warn(self, error: DistLockError) -> None:
        """Said once: while the others suffice, no error says it.

        What the server said counts for nothing there: it names the script, and there are several.
        """
        said = str(error).replace(str(error.__cause__), "")
        if said != self._warned:
            self._warned = said
            logger.warning("A node of the quorum has no vote: %s", error)

    def close(self) -> None:
        self._drop_left()  # what was put off needs a connection, and these may be all that there may be
        self.server.close()
        self._drop_left()  # once more: who leaves a connection from here on lets go of it

    def _drop_left(self) -> None:
        for patient, pool in self.pools.items():
            with suppress(IndexError):  # also where another thread has just taken the last one
                while True:
                    pool.discard(self.left[patient].pop().connection)

    def _cancel(self, claim: Claim, _: int) -> None:
        """Of one who waited here, and whose event loop has ended."""
        drive(self.server.threads().run(RELEASE, self.keys(claim.name), (claim.token, "", 0, "")))


_packed = lru_cache(maxsize=4096)(pack_keys)


class Forgot(BackendUnavailable):
    """A node has no memory of the quorum: a client has to tell it who it is."""


class WrongQuorum(ConfigurationError):
    """A node is another one than we think, or votes with others."""


def no_vote(node: Node, reply: Any) -> DistLockError | None:
    """Why the node that answers so has no vote. None: it has."""
    if type(reply) is not list or not reply or type(reply[0]) is not int or reply[0] >= 0:
        return None
    if reply[0] == FORGOT:
        why = f", and it cannot be told which node it is: {node.unfounded}" if node.unfounded else ""
        return Forgot(f"{node} has no memory of this quorum: it was set up, emptied or restarted{why}.")
    if reply[0] == YOUNG:
        return BackendUnavailable(
            f"{node} may have forgotten locks, because it was set up, emptied or restarted: it votes again in "
            f"{reply[2] / 1_000_000:.0f} s."
        )
    its_name, its_members, its_delay = stored_quorum(reply[2])
    name, members, delay = node.who.split(";")
    if (",".join(its_members), its_delay) != (members, float(delay)):
        return WrongQuorum(
            f"{node} votes with {','.join(its_members)} (restart_delay {its_delay:g} s), and here the nodes are "
            f"{members} ({delay} s). All processes have to name the same nodes; `distlock redlock adopt` makes a new "
            f"list count."
        )
    return WrongQuorum(f"{name} and {its_name} are one server, and would vote twice; or they have changed places.")


def stored_quorum(stored: bytes) -> tuple[str, list[str], float]:
    """Of a node that answers OTHER: its name, with whom it votes, and its delay in seconds."""
    try:
        name, members, delay = stored.decode("utf-8", "replace").rsplit(" ", 2)[0].split(";")
        return name, members.split(","), float(delay)
    except ValueError:  # not one of ours
        return "?", ["?"], 0.0
