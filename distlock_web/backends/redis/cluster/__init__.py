"""Locks in a Redis Cluster (6.2 or newer) or Valkey: ``"BACKEND": "redis-cluster"``. See docs/redis.md."""

from __future__ import annotations

from dataclasses import replace

from ....core.backend import Backend, Claim
from ....core.config import StoreConfig
from ....core.findings import Finding
from ....core.runtime import TASKS, THREADS, drive
from .. import RedisBackend
from ..diagnose import diagnose
from ..transport.server import Server
from .address import OPTIONS, cluster_address
from .port import ClusterPort
from .redirects import NodeAddress
from .routes import Routes
from .slots import SlotKeys, slot_of


class ClusterBackend(Backend):
    """All nodes of one cluster, each with its own connections, and its own word on whether it answers."""

    capabilities = RedisBackend.capabilities
    settings = frozenset({"LOCATION", "OPTIONS"})
    options = OPTIONS

    def __init__(self, config: StoreConfig) -> None:
        base, seeds = cluster_address(config)
        routes = self._routes = Routes(seeds, base, self._cancel)
        keys = SlotKeys(config.prefix)
        self._sync_port = ClusterPort(routes, THREADS, Server.threads, keys)
        self._renewal_port = ClusterPort(routes, THREADS, Server.renewals, keys)
        self._async_port = ClusterPort(routes, TASKS, Server.tasks, keys)

    def sync_port(self) -> ClusterPort:
        return self._sync_port

    def async_port(self) -> ClusterPort:
        return self._async_port  # each node finds the running loop's connection by itself

    def renewal_port(self) -> ClusterPort:
        return self._renewal_port

    def server_of(self, claim: Claim) -> NodeAddress | None:
        return self._routes.topology.owner(slot_of(claim.name))

    def diagnose(self) -> list[Finding]:
        masters = drive(self._routes.masters(THREADS))
        return [
            replace(finding, problem=f"{node.at}: {finding.problem}")
            for node in masters
            for finding in diagnose(node.server.address)
        ]

    def close(self) -> None:
        self._routes.close()

    def _cancel(self, claim: Claim, fence: int) -> None:
        drive(self._sync_port.cancel_now(claim, fence))
