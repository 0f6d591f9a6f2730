"""One node of a quorum: a Redis of its own, whether it may be asked now, and what it still owes an answer to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core.backend import Claim
from ...core.config import StoreConfig
from ...core.errors import DistLockError
from ...core.runtime import THREADS, now
from ..redis import RedisBackend
from ..redis.diagnose import server_time
from ..redis.port import RedisPort
from ..redis.scripts import ACQUIRE, CANCEL, RELEASE
from ..redis.transport.address import Address
from ..redis.transport.errors import broke_connection, translated
from ..redis.transport.pool import Connection, ConnectionPool, Reply
from .quorum import Part, finish, readable, run_blocking

logger = logging.getLogger("distlock_web")

#: Seconds that a node which cannot be reached is asked again for at most: it is asked for as long as we run.
FOR_EVER = 1e9
#: Seconds after which a node that has not answered yet is asked no more, while the others suffice.
LAG = 0.02
#: Seconds after which what was left unanswered is gone on with, if nobody asks the node again.
LEFT_FOR = 0.05


class Members:
    """Which server each node of a quorum is, by its ``run_id``: one server twice would be two votes."""

    def __init__(self) -> None:
        self._run_ids: dict[str, str] = {}
        self.twice = ""  #: what is wrong; empty: nothing is

    def met(self, node: str, run_id: str) -> bool:
        """Whether it was another server until now. ``ConnectionError`` if this one is another node already."""
        known = self._run_ids
        new = known.get(node) != run_id
        known[node] = run_id
        same = [other for other, its in list(known.items()) if its == run_id]
        self.twice = f"{' and '.join(sorted(same))} are one server, and would vote twice." if len(same) > 1 else ""
        if self.twice:
            raise ConnectionError(self.twice)
        return new


#: What has to be done by one message: nobody may be there to send it again, with its source, when it is not known.
_LOADED = (ACQUIRE, RELEASE, CANCEL)


@dataclass(frozen=True, kw_only=True)
class NodeAddress(Address):
    """A server that tells who it is, and since when it runs, before it is asked for anything."""

    check: Callable[[bytes], bool]  #: whether it is new to us; raises ``ConnectionError`` if it may not vote now
    check_down: Callable[[], None]

    def connect(self, timeout: float | None = None) -> Any:
        connection: Any = super().connect(timeout)
        try:
            connection.send_command("INFO", "server")
            if self.check(connection.read_response(disable_decoding=True)):
                for script in _LOADED:
                    connection.send_command("SCRIPT", "LOAD", script.source)
                    connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    async def aconnect(self) -> Any:
        self.check_down()
        connection: Any = await super().aconnect()
        try:
            await connection.send_command("INFO", "server")
            if self.check(await connection.read_response(disable_decoding=True)):
                for script in _LOADED:
                    await connection.send_command("SCRIPT", "LOAD", script.source)
                    await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


class NodePool(ConnectionPool):
    """Suspends where its base waits for an answer: whoever runs it sends the next node's question meanwhile."""

    def __init__(self, node: Node, *, patient: bool = False) -> None:
        super().__init__(node._address, node._health, node._moved, patient=patient)
        self._check_down = None if patient else node.check_down

    @property
    def idle(self) -> bool:
        return bool(self._idle)

    def _borrow(self, timeout: float | None) -> Connection:
        if self._check_down is not None:
            self._check_down()
        return super()._borrow(timeout)

    async def _read(self, connection: Connection, timeout: float | None) -> Reply:
        await readable(connection)
        return connection.read(timeout)

    def send_now(self, packed: bytes) -> Connection | None:
        """Send on a connection that is open. None: there is none, or it has broken."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        try:
            connection.send(packed)
        except Exception as error:
            self._broke(connection, error)
            return None
        return connection

    def read_now(self, connection: Connection) -> Reply:
        """The answer, which is there; None: the connection has broken."""
        try:
            reply = connection.read()
        except Exception as error:
            self._broke(connection, error)
            return None
        self._give_back(connection)
        return reply

    async def read_later(self, connection: Connection) -> None:
        """Wait for an answer that does not matter any more, so that the connection can be used again."""
        try:
            await self._read(connection, None)
        except BaseException as error:
            failure = self._broke(connection, error)
            if isinstance(error, Exception):
                raise failure from error
            raise
        self._give_back(connection)

    def _broke(self, connection: Connection, error: BaseException) -> DistLockError:
        # Who asks the node next, by its port, finds out what is wrong and says so.
        self._discard(connection)
        self._health.failed(error)
        return translated(error, self._address)


class Node(RedisBackend):
    """A Redis server among others. While it cannot be reached it is not asked; its own thread looks for it."""

    def __init__(self, config: StoreConfig, members: Members, restart_delay: float) -> None:
        self._members = members
        self._restart_delay = restart_delay
        self._down: DistLockError | None = None
        self._down_since = 0.0
        self.unfinished: dict[str, Part[Any]] = {}
        super().__init__(config)
        self._address = NodeAddress(**vars(self._address), check=self._check_server, check_down=self.check_down)
        self.timeout = self._answer_timeout
        self._start()

    def __str__(self) -> str:
        return self._address.name

    @property
    def identity(self) -> tuple[object, ...]:
        kwargs = self._address.kwargs
        return (kwargs.get("path"),) if "path" in kwargs else (kwargs.get("host"), kwargs.get("port", 6379))

    @property
    def index(self) -> str:
        return self._index

    @property
    def server_time_us(self) -> int:
        """Its clock, as we last heard it; 0: we have not."""
        return int(self._clock.after(0.0) or 0)

    def server_time(self) -> float:
        """Its clock, asked now, in seconds since the epoch. Raises ``DistLockError``."""
        return server_time(self._address)

    @property
    def min_replicas(self) -> int:
        return self._address.min_replicas

    def _start(self) -> None:
        super()._start()
        self._down = None
        self.unfinished = {}
        self._pool = self._ways = NodePool(self)
        self._renewal_pool = NodePool(self, patient=True)
        self._sync_port = self._port(self._pool, THREADS)
        self._renewal_port = self._port(self._renewal_pool, THREADS)

    # Whether it may be asked --------------------------------------------------------------------------------------

    @property
    def down_since(self) -> float | None:
        """Since when it cannot be reached; None: it can, as far as is known."""
        return None if self._down is None else self._down_since

    @property
    def ready(self) -> bool:
        """It can be asked without waiting for anything."""
        return self._down is None and self._ways.idle

    @property
    def lagging(self) -> bool:
        """It has not answered for a while, and to ask more of it a connection would have to be opened."""
        if not self.unfinished or self._ways.idle:
            return False
        latest = now() - LAG + self.timeout
        return any(0 < part.deadline < latest for part in list(self.unfinished.values()))

    def check_down(self) -> None:
        """Its last error, at once, where a request would only find out again that it cannot be reached."""
        error = self._down
        if error is not None:
            raise type(error)(f"{error} (For {now() - self._down_since:.1f} s; it is asked again meanwhile.)")

    def failed(self, error: DistLockError) -> None:
        """A part has failed with this error. Only a connection that breaks, or cannot be opened, makes a node down."""
        if broke_connection(error) and self._down is None:
            self._down_since = now()
            self._down = error
            logger.warning("A node of a quorum is left out: %s", error)
            self._let_go()  # of what else is open: it would fail again when the node is back
            self._listener.reconnect()  # who waits at this node asks, and goes to another
            self._health.postpone(self._recovered, after=0.0, within=FOR_EVER)

    def _recovered(self) -> None:
        if self._down is not None:
            finish([self], patient=False)  # what broke with it
            self._down = None
            logger.warning("%s votes again.", self)

    def _check_server(self, info: bytes) -> bool:
        """One that came back empty would vote for a second holder while the first one's lease still runs."""
        fields = dict(line.split(":", 1) for line in info.decode("utf-8", "replace").splitlines() if ":" in line)
        uptime = float(fields["uptime_in_seconds"])
        if 0 < self._restart_delay > uptime - 1:  # a difference of whole seconds: up to one more than has passed
            raise ConnectionError(
                f"it has started {uptime:.0f} s ago and may have forgotten locks that are held: it is left out for "
                f"{self._restart_delay:g} s (OPTIONS: restart_delay)"
            )
        return self._members.met(str(self), fields["run_id"])

    # An acquisition that does without the port: see ``direct.py`` ---------------------------------------------------

    def send_now(self, packed: bytes) -> Connection | None:
        return self._ways.send_now(packed)

    def read_grant(self, connection: Connection) -> int:
        return self.grant_of(self._ways.read_now(connection))

    def ask_in_loop(self, packed: bytes) -> asyncio.Future[Reply] | None:
        """The same for the running event loop."""
        found = self._loops.get(asyncio.get_running_loop())
        future = found[0].ask_now(packed) if found is not None and self._down is None else None
        if future is not None:
            future.add_done_callback(self._seen)
        return future

    def grant_of(self, reply: Reply) -> int:
        """The fence that it has given; 0: it has not, or what it says is for the port to understand."""
        if type(reply) is not list or reply[0] <= 0:
            return 0
        self._clock.heard(reply[1])
        return int(reply[0])

    def _seen(self, future: asyncio.Future[Reply]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._health.failed(error)
            failure = translated(error, self._address)
            failure.__cause__ = error
            self.failed(failure)

    def leave_unfinished(self, connection: Connection, token: str) -> None:
        part = Part(self, partial(self._ways.read_later, connection), token)
        part.resume()
        if part.connection is not None:
            self.unfinished[token] = part

    # What is left to do ------------------------------------------------------------------------------------------

    def finish_later(self) -> None:
        self._health.postpone(self._finish, after=LEFT_FOR, within=FOR_EVER)

    def _finish(self) -> None:
        finish([self], patient=True)

    def cancel_later(self, claim: Claim) -> None:
        """Cancel the claim when the node can be reached."""
        self._postpone(claim)

    def _cancel(self, claim: Claim) -> None:
        port: RedisPort = self._renewal_port  # which asks also while the node counts as down
        run_blocking(self, lambda: port.cancel_now(claim), claim.token)

    def close(self) -> None:
        super().close()
        self._down = None
        unfinished, self.unfinished = self.unfinished, {}
        for part in unfinished.values():
            part.close()
