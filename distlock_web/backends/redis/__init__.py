"""Locks in Redis (6.2 or newer) or Valkey: ``"BACKEND": "redis"``. See docs/redis.md."""

from __future__ import annotations

from ...core.backend import Backend, Capabilities, Claim
from ...core.config import StoreConfig
from ...core.findings import Finding
from ...core.runtime import TASKS, THREADS, drive
from .diagnose import diagnose
from .port import RedisPort
from .scripts.calls import OneIndex
from .sentinel import OPTIONS, sentinel_address
from .transport.address import address
from .transport.server import Server


class RedisBackend(Backend):
    """One server, or the master that sentinels name."""

    capabilities = Capabilities(
        queue=True,
        transfer=True,
        records=True,
        bounded_queue=True,
        sharing=True,
        min_expire=0.01,
    )
    settings = frozenset({"LOCATION", "CACHE", "OPTIONS"})
    options = OPTIONS

    def __init__(self, config: StoreConfig) -> None:
        self.server = Server(sentinel_address(config) or address(config), self._cancel)
        self._keys = OneIndex(config.prefix)
        self._sync_port = RedisPort(self.server, self.server.threads(), THREADS, self._keys)
        self._async_port = RedisPort(self.server, self.server.tasks(), TASKS, self._keys)
        self._renewal_port = RedisPort(self.server, self.server.renewals(), THREADS, self._keys)

    def sync_port(self) -> RedisPort:
        return self._sync_port

    def renewal_port(self) -> RedisPort:
        return self._renewal_port

    def async_port(self) -> RedisPort:
        return self._async_port  # the server finds the running loop's connection

    def close(self) -> None:
        self.server.close()

    def diagnose(self) -> list[Finding]:
        return diagnose(self.server.address)

    def _cancel(self, claim: Claim, fence: int) -> None:
        drive(self._sync_port.cancel_now(claim, fence=fence))
