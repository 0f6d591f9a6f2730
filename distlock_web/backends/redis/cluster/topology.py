"""Which node serves which slot, as far as we know: asked of any node that answers, and corrected by every MOVED."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.cluster import parse_cluster_slots
from redis.exceptions import RedisError

from ....core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ....core.runtime import Parker, Runtime, now
from ....core.worker import Worker
from ..transport.address import RedisAddress
from ..transport.errors import translated
from .redirects import NodeAddress
from .slots import SLOTS

logger = logging.getLogger("distlock_web")

#: Seconds that a view counts as fresh: while a node is down, each request that fails asks the others once more.
FRESH = 0.1
#: Seconds for the nodes to say who serves what; one that hangs is asked last the next time.
PATIENCE = 3.0
#: Seconds after which no caller joins those who wait for that: the nodes hang, and it is known.
SLOW = 0.2


class Topology:
    """The view of one process. A thread asks, and ends when no caller wants to know any more."""

    def __init__(
        self,
        seeds: Sequence[NodeAddress],
        address_of: Callable[[NodeAddress], RedisAddress],
        changed: Callable[[], None],
    ) -> None:
        self._seeds = seeds
        self._address_of = address_of
        self._changed = changed  #: called when slots have moved
        self._owners: list[NodeAddress | None] = [None] * SLOTS
        self._nodes: dict[NodeAddress, None] = {}  # masters and replicas
        self._hanging: dict[NodeAddress, None] = {}  # or of no use
        self._seen = float("-inf")  # when we began to ask, the last time that a node answered or all failed
        self._asking_since = float("inf")
        self._error: DistLockError | None = None
        self._wanted = float("-inf")
        self._waiting: dict[Parker, None] = {}
        self._worker = Worker("distlock-topology", self._step, lambda: self._seen < self._wanted)

    def owner(self, slot: int) -> NodeAddress | None:
        return self._owners[slot]

    @property
    def serving(self) -> dict[NodeAddress | None, None]:
        """Those that serve slots, in the order of these: no set, whose order is another one in each process."""
        return dict.fromkeys(self._owners)

    @property
    def masters(self) -> dict[NodeAddress, list[int]]:
        """Those that serve slots, and which."""
        found: dict[NodeAddress, list[int]] = {}
        for slot, owner in enumerate(self._owners):
            if owner is not None:
                found.setdefault(owner, []).append(slot)
        return found

    def moved(self, slot: int, to: NodeAddress) -> None:
        """A node has said so. Others may have moved with it: that is asked meanwhile."""
        if self._owners[slot] != to:
            self._owners[slot] = to
            self._changed()
            self._want(now())  # if no thread is to be had, the next who is told asks

    async def refresh(self, runtime: Runtime, asked: NodeAddress | None = None) -> None:
        """Return when the view is not older than this call, or than ``FRESH``. Raises where no node can tell.

        ``asked``: it has just failed, so it is asked last.
        """
        if asked is not None:
            self._hanging[asked] = None
        begun = now()
        parker = runtime.parker()
        if begun - self._asking_since > SLOW:
            raise BackendUnavailable("No node of the cluster has answered yet which node serves which slot.")
        while self._seen < begun - FRESH:
            self._waiting[parker] = None
            try:
                if not self._want(begun - FRESH):
                    raise BackendUnavailable("No thread could be started to ask the cluster for its slots.")
                left = begun + PATIENCE - now()
                if self._seen < begun - FRESH and (left <= 0 or not await parker.park(left)):
                    raise BackendUnavailable(f"No node of the cluster has listed its slots within {PATIENCE:g} s.")
            finally:
                self._waiting.pop(parker, None)
        if self._error is not None:
            raise type(self._error)(str(self._error)) from self._error

    # The thread --------------------------------------------------------------------------------------------------

    def _want(self, since: float) -> bool:
        """See to it that the view is from this moment or later. False: no thread is to be had."""
        self._wanted = max(self._wanted, since)
        return self._worker.start()

    def _step(self) -> float:
        begun = self._asking_since = now()
        try:
            self._error = self._look()
        except Exception as error:
            logger.exception("The list of the cluster's nodes could not be updated")
            self._error = BackendUnavailable(f"The list of the cluster's nodes could not be updated: {error}")
        self._seen, self._asking_since = begun, float("inf")
        for parker in list(self._waiting):
            parker.unpark()
        return 0.0

    def _look(self) -> DistLockError | None:
        """Ask one node after the other until one knows the slots; if none does, the reason."""
        errors: list[DistLockError] = []
        for node in self._candidates():
            address = self._address_of(node)
            try:
                owners, nodes = _ask(address, node)
            except (RedisError, OSError) as error:
                errors.append(_explained(error, address))
                self._hanging[node] = None
                continue
            if not any(owners):  # it has left the cluster, or not joined it yet: the others know more
                errors.append(BackendUnavailable(f"{address.name} knows no node of its cluster that serves a slot."))
                self._hanging[node] = None
                continue
            self._hanging.pop(node, None)
            self._nodes = nodes
            if owners != self._owners:
                self._owners = owners
                self._changed()
            return None
        return next((error for error in errors if isinstance(error, ConfigurationError)), errors[-1])

    def _candidates(self) -> Iterable[NodeAddress]:
        """Those that answered last in front, those that hang at the end."""
        known = dict.fromkeys([*self._nodes, *self._seeds])
        return sorted(known, key=lambda node: node in self._hanging)


def _ask(address: RedisAddress, node: NodeAddress) -> tuple[list[NodeAddress | None], dict[NodeAddress, None]]:
    """What this node knows: who serves each slot, and all nodes that answer."""
    connection: Any = address.connect()
    try:
        connection.send_command("CLUSTER", "SLOTS")
        ranges = parse_cluster_slots(connection.read_response(disable_decoding=True), current_host=node.host)
    finally:
        connection.disconnect()
    owners: list[NodeAddress | None] = [None] * SLOTS
    nodes: dict[NodeAddress, None] = {}
    for (first, last), serving in ranges.items():
        owner = NodeAddress(*serving["primary"])
        owners[first : last + 1] = [owner] * (last + 1 - first)
        nodes.update(dict.fromkeys([owner, *(NodeAddress(*replica) for replica in serving["replicas"])]))
    return owners, nodes


def _explained(error: BaseException, address: RedisAddress) -> DistLockError:
    if "cluster support disabled" in str(error):
        return ConfigurationError(
            f"{address.name} is a single server, not a node of a Redis Cluster: its LOCATION begins with redis://."
        )
    explained = translated(error, address)
    if isinstance(explained, ConfigurationError) and "ACL SETUSER" in str(explained):
        return ConfigurationError(f"{explained} In a cluster it also needs +cluster|slots +cluster|myid.")
    return explained
