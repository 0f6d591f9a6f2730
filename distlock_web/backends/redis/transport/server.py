"""One Redis server: its connections, whether it answers, who waits at it, and what is to be undone there later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ....core.backend import Claim
from ....kit.outage import Outage
from .address import RedisAddress
from .errors import FAILURES, translated
from .exchange import Exchange, Lines
from .listener import Listener
from .loop_connection import LoopConnections
from .pipeline import Pipeline
from .pool import ConnectionPool

#: Seconds that a place in a queue outlives the lease that it is for: GRACE of ``_join.lua``, a millisecond for each of
#: a thousand places in front, and some more.
PLACE_OUTLIVES = 20.0
#: Seconds for which a lock is given back that was handed to a waiter that has gone; how long its lease is is not known.
GIVE_UP_WITHIN = 3600.0
#: Releases that are remembered. The server remembers none: it would cost every one of them a command.
RELEASED_TOKENS_KEPT = 1000


class Server:
    """Connections for threads (a pool), for each event loop (one), for renewals, and one to listen on.

    ``cancel`` undoes a claim in the store, now; with a fence, that grant alone. ``patient``: renewals ask also while
    the server is silent.
    """

    def __init__(self, address: RedisAddress, cancel: Callable[[Claim, int], None], *, patient: bool = True) -> None:
        self.address = address
        self.answer_timeout = float(address.kwargs["socket_timeout"])
        self.outage = Outage(address.name, partial(ping, address), self.answer_timeout)
        self.listener = Listener(address, self._give_up)
        self.pool = ConnectionPool(address, self.outage)
        self.ambiguous: set[str] = set()  #: tokens of which a copy of the acquisition may still be on its way
        self.released = deque[str](maxlen=RELEASED_TOKENS_KEPT)  #: tokens: a second release is no loss
        self._cancel = cancel
        self.renewal_pool = ConnectionPool(address, self.outage, patient=patient)
        self.loops = LoopConnections(address, self.outage, self.pool)
        self._threads, self._renewals = self._over(self.pool), self._over(self.renewal_pool)
        self._tasks = self._over(self.loops)
        address.follow(self._moved)

    def _over(self, lines: Lines) -> Exchange:
        kind = Pipeline if self.address.min_replicas else Exchange
        return kind(lines, self.address, self.outage.look, self._moved)

    def threads(self) -> Exchange:
        return self._threads

    def renewals(self) -> Exchange:
        return self._renewals

    def tasks(self) -> Exchange:
        return self._tasks

    def _moved(self) -> None:
        """The address leads to another server now, and the open connections do not: let go of all of them."""
        self._let_go()
        self.listener.reconnect()

    def _let_go(self) -> None:
        self.pool.drop()
        self.renewal_pool.drop()
        self.loops.drop()

    def close(self) -> None:
        self.outage.close()
        self.listener.close()
        self._let_go()

    def retire(self, successor: Server) -> None:
        """It is not needed any more: let go of its connections. What was put off until it answers is another's."""
        successor.outage.take_over(self.outage)
        self._moved()

    def postpone(self, claim: Claim, *, sent: bool = False) -> None:
        """Cancel the claim when the server answers. It is kept until its place in the queue has ended by itself.

        ``sent``: a copy of the acquisition may still be on its way, as where it is ambiguous: not before that has come.
        """
        after = self.answer_timeout if sent or claim.token in self.ambiguous else 0.0
        self.ambiguous.discard(claim.token)
        within = after + claim.expire + PLACE_OUTLIVES
        self.outage.postpone(partial(self._cancel, claim, 0), after=after, within=within)

    def _give_up(self, claim: Claim, fence: int) -> None:
        """Cancel what a waiter was granted that has gone without a word; with a fence, that grant alone."""
        self.outage.postpone(partial(self._cancel, claim, fence), after=0.0, within=GIVE_UP_WITHIN)


def ping(address: RedisAddress) -> None:
    """Ask on a connection of its own whether the server answers. Raises ``DistLockError`` if it does not."""
    try:
        connection: Any = address.connect()
        try:
            # A script, as every request is: a server that holds those back (CLIENT PAUSE, a proxy) may answer a PING.
            connection.send_command("EVAL", "return 1", "0")
            connection.read_response()
        finally:
            connection.disconnect()
    except FAILURES as error:
        raise translated(error, address) from error
