"""From a slot to the node that serves it: the nodes that we know, and who waits at which of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ....core.backend import Claim
from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import Runtime
from ..transport.address import RedisAddress
from ..transport.server import Server
from .address import address_of
from .redirects import NodeAddress
from .slots import slot_of
from .topology import Topology


class ClusterNode(NamedTuple):
    at: NodeAddress
    server: Server


class Routes:
    def __init__(self, seeds: Sequence[NodeAddress], base: RedisAddress, cancel: Callable[[Claim, int], None]) -> None:
        self.base = base  #: how to connect to each node
        self._cancel = cancel
        self._nodes: dict[NodeAddress, ClusterNode] = {}
        self._adding = threading.RLock()  # reentrant: garbage that is collected inside may release a lock of its own
        self.waiting: dict[str, ClusterNode] = {}  #: by token, the node in whose queue it is
        #: As each server's, of all nodes: one that takes over has what the node before has done, answered or not.
        self.ambiguous: set[str] = set()
        self.topology = Topology(seeds, lambda node: address_of(node, base), self._slots_moved)

    def node(self, at: NodeAddress) -> ClusterNode:
        found = self._nodes.get(at)
        if found is None:
            with self._adding:
                found = self._nodes.get(at)
                if found is None:
                    found = self._nodes[at] = ClusterNode(at, self._server(at))
        return found

    def _server(self, at: NodeAddress) -> Server:
        # Impatient: a renewal does not wait for a node that is known to hang, but asks the others who has taken over.
        server = Server(address_of(at, self.base), self._cancel, patient=False)
        server.ambiguous = self.ambiguous
        return server

    async def owner(self, slot: int, runtime: Runtime) -> ClusterNode:
        """The node that serves this slot. ``BackendUnavailable`` where none does, or none can be asked."""
        at = self.topology.owner(slot)
        if at is None:
            await self.topology.refresh(runtime)
            at = self.topology.owner(slot)
            if at is None:
                raise BackendUnavailable(f"No node of the Redis Cluster serves the slot {slot}.")
        return self.node(at)

    async def masters(self, runtime: Runtime) -> dict[ClusterNode, list[int]]:
        """The nodes that serve slots, and which; asked anew, for some may not have been of use here lately."""
        await self.topology.refresh(runtime)
        return {self.node(at): slots for at, slots in self.topology.masters.items()}

    async def replaced(self, slot: int, failed: ClusterNode, runtime: Runtime) -> bool:
        """Whether the cluster says that another node serves this slot than the one that has just failed."""
        try:
            await self.topology.refresh(runtime, failed.at)
        except DistLockError:
            return False  # the failure itself says more
        return self.topology.owner(slot) not in (None, failed.at)

    def postpone(self, claim: Claim) -> None:
        """Cancel this claim when the node of its lock answers."""
        at = self.topology.owner(slot_of(claim.name))
        if at is not None:
            self.node(at).server.postpone(claim, sent=True)
        else:
            self.ambiguous.discard(claim.token)  # nobody asks again with this token

    def _slots_moved(self) -> None:
        """Who waits at a node for a lock that is another's now asks at once. A node without slots is let go of."""
        serving = self.topology.serving
        successor = next((at for at in serving if at is not None), None)
        for at, node in list(self._nodes.items()):
            node.server.listener.ask_again(partial(self._is_elsewhere, at))
            if at not in serving and successor is not None:
                node.server.retire(self.node(successor).server)

    def _is_elsewhere(self, at: NodeAddress, claim: Claim) -> bool:
        return self.topology.owner(slot_of(claim.name)) != at

    def close(self) -> None:
        for node in list(self._nodes.values()):
            node.server.close()
