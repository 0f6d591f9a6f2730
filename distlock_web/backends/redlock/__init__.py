"""Locks in a majority of independent Redis servers (Redlock): ``"BACKEND": "redlock"``. See docs/redlock.md."""

from __future__ import annotations

import asyncio
import logging

from ...core.backend import Capabilities
from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.findings import Finding
from ...core.runtime import TASKS, THREADS, Runtime
from ..redis.port import RedisPort
from .diagnose import diagnose
from .lane import Lanes
from .node import Members, Node
from .port import RedlockPort
from .settings import quorum_config
from .votes import Ledger

logger = logging.getLogger("distlock_web")


class RedlockBackend:
    """N servers that know nothing of each other; a lock is held by who has it on more than half of them."""

    # A round trip to a majority has to fit into the shortest lease several times.
    capabilities = Capabilities(fencing=True, waiting=True, queue=True, transfer=True, listing=True, min_expire=0.1)
    settings = frozenset({"LOCATION", "OPTIONS"})

    def __init__(self, config: StoreConfig) -> None:
        given = quorum_config(config)
        self._members = Members()
        self._nodes = [Node(node, self._members, given.restart_delay) for node in given.nodes]
        self._restart_delay = given.restart_delay
        self._check(f"DISTLOCK[{config.alias!r}]")
        self._ledger = Ledger()
        self._lanes = Lanes(self._nodes[0].max_connections)
        self._loops: dict[asyncio.AbstractEventLoop, RedlockPort] = {}
        self._sync_port = self._port(THREADS, [node.sync_port() for node in self._nodes])
        self._renewal_port = self._port(THREADS, [node.renewal_port() for node in self._nodes], patient=True)

    def _check(self, where: str) -> None:
        seen: dict[tuple[object, ...], Node] = {}
        for node in self._nodes:
            if node.identity in seen:
                raise ConfigurationError(f"{where} names {node} twice: it would vote twice.")
            seen[node.identity] = node
            if node.min_replicas:
                raise ConfigurationError(f"{where} asks for min_replicas: the nodes of a quorum have no replicas.")
        if len(seen) % 2 == 0:
            logger.warning(
                "%s names %d nodes: one fewer would survive the loss of as many, for a majority of %d is %d.",
                where, len(seen), len(seen), len(seen) // 2 + 1,
            )  # fmt: skip

    def _port(self, runtime: Runtime, ports: list[RedisPort], patient: bool = False) -> RedlockPort:
        nodes = list(zip(self._nodes, ports, strict=True))
        return RedlockPort(runtime, nodes, self._members, self._ledger, self._lanes, self._restart_delay, patient)

    def sync_port(self) -> RedlockPort:
        return self._sync_port

    def renewal_port(self) -> RedlockPort:
        return self._renewal_port

    def async_port(self) -> RedlockPort:
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            for closed in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(closed, None)
            found = self._loops[loop] = self._port(TASKS, [node.async_port() for node in self._nodes])
        return found

    def diagnose(self) -> list[Finding]:
        return diagnose(self._nodes, self._restart_delay)

    def close(self) -> None:
        self._lanes.close()
        for node in self._nodes:
            node.close()
