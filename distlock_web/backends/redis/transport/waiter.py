"""Who waits here for a lock in Redis, and whether news of a hand-over can be believed."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ....core.backend import Claim
from ....core.runtime import THREADS, Parker, Runtime, now
from .subscription import Grant


class ReceivedGrant(NamedTuple):
    """A grant as it was read: on which connection, and when that had nothing to read for the last time."""

    grant: Grant
    connection: int
    last_empty_poll: float


class Waiter:
    """One waiter of this process: what it last heard from the server, and what was published for it since."""

    __slots__ = ("claim", "connection", "loop", "news", "parker", "runtime", "sent_at", "server_time_us", "woken")

    def __init__(self, claim: Claim, runtime: Runtime, connection: int) -> None:
        self.claim = claim
        self.runtime = runtime
        self.loop = None if runtime is THREADS else asyncio.get_running_loop()
        self.parker: Parker | None = None  # made for its first sleep: most locks are free
        self.connection = connection  #: which one was open when it asked
        self.sent_at: float | None = None  #: our clock before the last question that was answered was sent
        self.server_time_us = 0  #: the server's clock in the answer
        self.news: ReceivedGrant | None = None
        self.woken = False  #: by a message, by a new connection, or by its end: ask

    @property
    def abandoned(self) -> bool:
        return self.loop is not None and self.loop.is_closed()

    def wake(self) -> None:
        self.woken = True
        if self.parker is not None:
            self.parker.unpark()

    def granted_since(self) -> tuple[int, float] | None:
        """The fence and our clock when the lock was handed over, on the safe side; None: there is no news, or ask.

        The server tells its own clock at our last question and at the hand-over. Clocks are not compared, only what
        passed on its one between the two; ours may have run 1 % slower meanwhile. Steps of its clock are why that is
        not all: it cannot have been after the reader had nothing to read, nor before our question, and it has to be
        news of the server that was asked.
        """
        news, self.news = self.news, None
        if news is None or self.sent_at is None or news.connection != self.connection:
            return None
        passed = (news.grant.at - self.server_time_us) / 1_000_000
        since = max(self.sent_at, min(self.sent_at + passed * 0.99, news.last_empty_poll))
        if passed < 0 or now() - since > self.claim.expire / 2:
            return None  # a clock was set, or it comes late: the server knows whose it is, and for how long
        return news.grant.fence, since
