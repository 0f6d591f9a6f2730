"""One node of a quorum: a Redis of its own, whether it may be asked now, and what it still owes an answer to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from ...core.backend import Claim
from ...core.config import StoreConfig
from ...core.errors import DistLockError
from ...core.outage import FOR_EVER
from ...core.runtime import THREADS, now
from ..redis import RedisBackend
from ..redis.diagnose import server_time
from ..redis.port import TOMBSTONE_MS, RedisPort
from ..redis.scripts import ACQUIRE, CANCEL, RELEASE
from ..redis.transport.address import Address, address
from ..redis.transport.clock import ServerClock
from ..redis.transport.errors import FAILURES, TIMEOUTS, broke_connection, translated
from ..redis.transport.pool import Connection, ConnectionPool, Reply
from ..redis.transport.stream import Stream
from .quorum import Part, finish, readable, run_blocking, wait_for_data
from .wire import NodeWire

logger = logging.getLogger("distlock_web")

#: Seconds after which a node that has not answered yet is asked no more, while the others suffice.
LAG = 0.02
#: Milliseconds for which a copy of an acquisition may come though its time is over by our clock: the node's is another.
#: So long a cancellation refuses it, and with it the same token, which may have asked again by then.
LATE_MS = 200
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
    """A server that tells who it is, since when it runs and what time it is, before it is asked for anything."""

    check: Callable[[bytes], bool]  #: whether it is new to us; raises ``ConnectionError`` if it may not vote now
    heard: Callable[[int], None]  #: its time, in µs
    check_down: Callable[[], None]

    def connect(self, timeout: float | None = None) -> Any:
        connection: Any = super().connect(timeout)
        try:
            connection.send_command("INFO", "server")
            if self.check(connection.read_response(disable_decoding=True)):
                for script in _LOADED:
                    connection.send_command("SCRIPT", "LOAD", script.source)
                    connection.read_response()
            connection.send_command("TIME")
            self.heard(_us(connection.read_response(disable_decoding=True)))
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
            await connection.send_command("TIME")
            self.heard(_us(await connection.read_response(disable_decoding=True)))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


def _us(time: list[bytes]) -> int:
    return int(time[0]) * 1_000_000 + int(time[1])


class NodePool(ConnectionPool):
    """Suspends where its base waits for an answer: whoever runs it sends the next node's question meanwhile."""

    def __init__(self, node: Node, *, patient: bool = False) -> None:
        super().__init__(node._address, node._outage, node._moved, patient=patient)
        self._check_down = None if patient else node.check_down

    @property
    def idle(self) -> bool:
        return bool(self._idle)

    def _borrow(self, timeout: float | None) -> Connection:
        if self._check_down is not None:
            self._check_down()
        while self._idle:
            connection = super()._borrow(timeout)
            if not wait_for_data([connection.fileno()], 0.0):
                return connection
            self._discard(connection)  # it has ended while it was idle: to ask there would take the node for down
        return super()._borrow(timeout)

    async def _read(self, connection: Connection, timeout: float | None, held_up: bool = False) -> Reply:
        if held_up:
            return await super()._read(connection, timeout, held_up)
        await readable(connection)
        return connection.read(timeout)

    def _waited_in_vain(self, connection: Connection, error: BaseException) -> None:
        self._outage.begin(error)  # the others have answered meanwhile: nobody waits for a second question


class Node(RedisBackend):
    """A Redis server among others. While it cannot be reached it is not asked; its own thread looks for it."""

    def __init__(self, config: StoreConfig, members: Members, restart_delay: float) -> None:
        self._members = members
        self._restart_delay = restart_delay
        # As heard without delay: the ports' clock may have heard an answer that nobody read for long.
        self._prompt_clock = ServerClock()
        super().__init__(config)
        self.timeout = self._answer_timeout

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
    def ahead_us(self) -> int | None:
        """How far its clock is ahead of ``now()``, as we last heard it; None: we have not."""
        return self._prompt_clock.ahead_us

    def _heard(self, time_us: int) -> None:
        self._prompt_clock.heard(time_us, now())

    @property
    def max_connections(self) -> int:
        return self._address.max_connections

    def server_time(self) -> float:
        """Its clock, asked now, in seconds since the epoch. Raises ``DistLockError``."""
        return server_time(self._address)

    @property
    def min_replicas(self) -> int:
        return self._address.min_replicas

    def _address_of(self, config: StoreConfig) -> Address:
        return NodeAddress(
            **vars(address(config)),
            check=self._check_server,
            heard=self._heard,
            check_down=self.check_down,
        )

    def _pool_for(self, loop: asyncio.AbstractEventLoop) -> ConnectionPool | None:
        return None  # a NodePool suspends in a way of its own

    def _start(self) -> None:
        super()._start()
        self.down_since: float | None = None  #: since when it cannot be reached; None: it can, as far as is known
        self._down: DistLockError | None = None  #: why
        self._is_looked_for = False
        self.unfinished: dict[str, Part[Any]] = {}
        self._wires: WeakValueDictionary[int, NodeWire] = WeakValueDictionary()
        self._pool = self._ways = NodePool(self)
        self._renewal_pool = NodePool(self, patient=True)
        self._sync_port = self._port(self._pool, THREADS)
        self._renewal_port = self._port(self._renewal_pool, THREADS)

    # Whether it may be asked --------------------------------------------------------------------------------------

    @property
    def lagging(self) -> bool:
        """It has not answered for a while, and to ask more of it a connection would have to be opened."""
        if not self.unfinished or self._ways.idle:
            return False
        latest = now() - LAG + self.timeout
        return any(0 < part.deadline < latest for part in list(self.unfinished.values()))

    def check_down(self) -> None:
        """Its last error, at once, where a request would only find out again that it cannot be reached."""
        error, since = self._down, self.down_since
        if error is not None and since is not None:
            if not self._is_looked_for:
                self._look_for()
            self._outage.watch()  # there may have been no thread to be had
            raise type(error)(f"{error} (For {now() - since:.1f} s; it is asked again meanwhile.)")

    def failed(self, error: DistLockError) -> None:
        """A part has failed with this error. Only a connection that breaks, or cannot be opened, makes a node down."""
        if broke_connection(error) and self.down_since is None:
            self._is_looked_for = False  # a signal's exception may come before it is: then whoever is refused does it
            self._down, self.down_since = error, now()
            self._look_for()
            logger.warning("A node of a quorum is left out: %s", error)
            self._let_go()  # of what else is open: it would fail again when the node is back
            self._let_wires_go()
            self._listener.reconnect()  # who waits at this node asks, and goes to another

    def _look_for(self) -> None:
        self._outage.postpone(self._recovered, after=0.0, within=FOR_EVER)
        self._is_looked_for = True

    def _recovered(self) -> None:
        if self.down_since is not None:
            finish([self], patient=False)  # what broke with it
            self.down_since = self._down = None
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

    def open_wire(self) -> NodeWire:
        """Raises ``DistLockError``; then it is down."""
        try:
            wire = NodeWire(self, self._address.connect())
        except FAILURES as error:
            raise self.broke(error) from error
        self._wires[id(wire)] = wire
        return wire

    def open_stream(self) -> Stream | None:
        """The one of the running event loop; None: it is not open."""
        found = self._loops.get(asyncio.get_running_loop())
        return found[0].stream if found is not None and self.down_since is None else None

    def grant_of(self, reply: Reply) -> int:
        """The fence that it has given; 0: it has not, or what it says is for the port to understand."""
        if type(reply) is not list:
            return 0
        self._heard(reply[1])  # also where it refuses, as too late: its clock may have been set
        return max(0, int(reply[0]))

    def broke(self, error: BaseException) -> DistLockError:
        """A connection could not be opened, or is silent: the node is down."""
        if isinstance(error, TIMEOUTS):
            self._outage.begin(error)
        failure = translated(error, self._address)
        failure.__cause__ = error
        self.failed(failure)
        return failure

    def ended(self, error: BaseException) -> None:
        """One that was open. What has merely ended is opened again, or cannot be: only silence says more."""
        if isinstance(error, TimeoutError):
            self.broke(error)

    def undo(self, wire: NodeWire) -> None:
        """What nobody wants any more, and this wire will not tell of, is cancelled when the node can be reached."""
        for question in list(wire.owed):
            if question.undo:
                self.cancel_later(question.claim)

    def _let_wires_go(self) -> None:
        wires, self._wires = self._wires, WeakValueDictionary()
        for wire in [reference() for reference in wires.valuerefs()]:
            if wire is not None:
                wire.stale = True
                self.undo(wire)

    # What is left to do ------------------------------------------------------------------------------------------

    def finish_later(self) -> None:
        self._outage.postpone(self._finish, after=LEFT_FOR, within=FOR_EVER)

    def _finish(self) -> None:
        finish([self], patient=True)

    def cancel_later(self, claim: Claim, confirmed: Callable[[], None] | None = None) -> None:
        """Cancel the claim when the node can be reached; and say so when it has confirmed that."""

        def cancel() -> None:
            self._cancel(claim)
            if confirmed is not None:
                confirmed()

        if self.down_since is not None and not self._is_looked_for:
            self._look_for()
        within = claim.expire + TOMBSTONE_MS / 1000
        # After that there is nothing left of it: that is as good as confirmed.
        self._outage.postpone(cancel, after=self._answer_timeout, within=within, over=confirmed)

    def _cancel(self, claim: Claim, nobodys: bool = False) -> None:
        port: RedisPort = self._renewal_port  # which asks also while the node counts as down
        run_blocking(self, lambda: port.cancel_now(claim, LATE_MS, nobodys), claim.token)

    def close(self) -> None:
        super().close()
        self.down_since = self._down = None
        unfinished, self.unfinished = self.unfinished, {}
        for part in unfinished.values():
            part.close()
