"""One request's way to the node of its lock: what to do where a node says that it is another's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from ....core.backend import Claim
from ....core.errors import BackendUnavailable, DistLockError, NotSent
from ....core.runtime import Runtime, now
from ..port import RedisPort
from ..transport.errors import TooFewReplicas
from .redirects import Ask, Moved, TryAgain, redirect_of
from .routes import ClusterNode, Routes

T = TypeVar("T")
#: The port of a node in one mode.
PortOf: TypeAlias = "Callable[[ClusterNode], RedisPort]"

#: Seconds before a slot that is just being moved is asked for again; twice as long each time, up to the longest.
PAUSE, MAX_PAUSE = 0.01, 0.2
#: Redirections that are followed without a pause: a move that is over, or has just reached the keys of this lock.
AT_ONCE = 3
#: Seconds that a request follows its slot. The keys of a lock are together again within milliseconds, as a rule.
FOLLOW = 1.0
#: The same for all slots of one renewal together: the answers for other leases, which may be short, wait for them.
FOLLOW_TOGETHER = 0.1
#: Seconds that a node has to answer one request of those: it may hang.
FOLLOWED = 0.25


class SlotMoving(BackendUnavailable):
    """The slot of the lock is being moved, and its keys are at both ends. Nothing was done."""


class Route:
    """Where one request is asked; ``node``: in the end, where it was answered."""

    node: ClusterNode

    def __init__(
        self,
        routes: Routes,
        runtime: Runtime,
        port_of: PortOf,
        slot: int,
        claim: Claim | None = None,
        start: ClusterNode | None = None,
        until: float | None = None,
    ) -> None:
        self._routes = routes
        self._runtime = runtime
        self._port_of = port_of
        self._slot = slot
        self._claim = claim  #: of a caller that may wait somewhere; None: of none
        self._token = claim.token if claim else ""
        self._start = start
        self._unclear = False  #: a node may have done it: its answer was lost
        self._until = until  #: when it is followed no longer; None: ``FOLLOW`` after the first time
        self._hurries = until is not None  #: others wait for it
        self._redirects = 0

    async def send(self, verb: Callable[[RedisPort], Awaitable[T]]) -> T:
        """Ask the node of the lock, or ``start``; then where that leads to."""
        self.node = self._start or await self._routes.owner(self._slot, self._runtime)
        former = self._routes.waiting.get(self._token)
        if former is not None and former is not self.node:
            self._port_of(former).leave(self._token)
        port = self._port_of(self.node)
        while True:
            try:
                return await verb(port)
            except TooFewReplicas:
                raise
            except DistLockError as error:
                port = await self._next(error, port)

    async def _next(self, error: DistLockError, port: RedisPort) -> RedisPort:
        """Where to ask after this error; raises it where there is nowhere else."""
        to = redirect_of(error, self.node.at)
        if isinstance(to, Moved):
            self._routes.topology.moved(to.slot, to.to)
        elif to is None:
            if not isinstance(error, BackendUnavailable):
                raise error
            self._unclear = self._unclear or not isinstance(error, NotSent)
            # Who hurries does not wait for the others to say so: who renews it next asks them.
            if self._hurries or not await self._routes.replaced(self._slot, self.node, self._runtime):
                if self._unclear and isinstance(error, NotSent):  # it does not speak for the node before
                    raise BackendUnavailable(str(error)) from error
                raise error
        await self._pause(error, isinstance(to, TryAgain))
        asking = isinstance(to, Ask)
        if asking and self._claim:
            self._tell_waiters(self._claim.name)
        node = self._routes.node(to.to) if isinstance(to, Ask) else await self._routes.owner(self._slot, self._runtime)
        if node is not self.node:
            if self._token:
                port.leave(self._token)
            self.node = node
        return self._port_of(node).asking() if asking else self._port_of(node)

    def _tell_waiters(self, name: str) -> None:
        """The lock has gone ahead of its slot: who sleeps where it was would not hear of its release."""
        self.node.server.listener.ask_again(lambda claim: claim.name == name)

    async def _pause(self, error: DistLockError, half_moved: bool) -> None:
        """Give the move its time. ``SlotMoving`` when it has had enough."""
        moment = now()
        if self._until is None:
            self._until = moment + FOLLOW
        elif self._redirects and moment > self._until:
            raise SlotMoving(
                f"The slot {self._slot} of the Redis Cluster is moving, and for too long: the keys of a lock in it are "
                f"at two nodes ({error.__cause__ or error})."
            ) from error
        self._redirects += 1
        if half_moved or self._redirects > AT_ONCE:
            await self._runtime.parker().park(min(PAUSE * 2.0**self._redirects, MAX_PAUSE))
