"""Locks in a majority of independent Redis servers (Redlock): ``"BACKEND": "redlock"``. See docs/redlock.md."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ...core.backend import Backend, Capabilities
from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.findings import Finding
from ...core.runtime import TASKS, THREADS, drive
from ..redis.transport.address import is_fake
from .diagnose import diagnose
from .node import Node
from .port import RELEASED_KEPT, RedlockPort
from .quorum import Quorum
from .settings import OPTIONS, RESTART_DELAY, quorum_config


class RedlockBackend(Backend):
    """N servers that know nothing of each other; a lock is held by who has it on more than half of them."""

    # A round trip to a majority has to fit into the shortest lease several times.
    capabilities = Capabilities(min_expire=0.1, max_expire=RESTART_DELAY)
    settings = frozenset({"LOCATION", "OPTIONS"})
    options = OPTIONS

    def __init__(self, config: StoreConfig) -> None:
        nodes, delay = quorum_config(config)
        self._restart_delay, self._expire = delay, config.expire
        self.capabilities = replace(type(self).capabilities, max_expire=delay or float("inf"))
        self._nodes = [Node(node) for node in nodes]
        self._check(config.where)
        members = ",".join(sorted(node.member for node in self._nodes))
        for node in self._nodes:
            node.who = f"{node.member};{members};{delay:g}"
        self._quorum, released = Quorum(self._nodes, delay), deque[str](maxlen=RELEASED_KEPT)
        self._sync_port = RedlockPort(THREADS, self._quorum, released)
        self._renewal_port = RedlockPort(THREADS, Quorum(self._nodes, delay, patient=True), released)
        self._async_port = RedlockPort(TASKS, Quorum(self._nodes, delay, blocking=False), released)

    def _check(self, where: str) -> None:
        seen: dict[str, Node] = {}
        for node in self._nodes:
            server = node.member.rpartition("/")[0]
            if server in seen:
                raise ConfigurationError(f"{where} names {node} twice: it would vote twice.")
            seen[server] = node
            if is_fake(node.address.connection_class):
                raise ConfigurationError(f"{where} is on fakeredis, which is one server: no quorum.")
            if node.address.min_replicas:
                raise ConfigurationError(f"{where} asks for min_replicas: the nodes of a quorum have no replicas.")

    def sync_port(self) -> RedlockPort:
        return self._sync_port

    def renewal_port(self) -> RedlockPort:
        return self._renewal_port

    def async_port(self) -> RedlockPort:
        return self._async_port

    def diagnose(self) -> list[Finding]:
        return diagnose(self._nodes, self._restart_delay, self._expire)

    def prepare(self) -> str:
        """Tell new nodes their names, so that their delay is over before the first lock is asked for."""
        return drive(self._quorum.prepare())

    def adopt(self) -> str:
        """Make this list of nodes count, in place of the one that they store. What was done, in words."""
        return drive(self._quorum.adopt())

    def close(self) -> None:
        for node in self._nodes:
            node.close()
