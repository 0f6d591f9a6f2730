"""Locks in ZooKeeper (3.5.3 or newer): ``"BACKEND": "zookeeper"``. See docs/zookeeper.md."""

from __future__ import annotations

from ...core.backend import Capabilities
from ...core.blocking_port import BlockingPort, Executors, Wakeups
from ...core.config import StoreConfig
from ...core.runtime import TASKS, THREADS
from .address import address
from .places import Places
from .session import Session
from .verbs import ZooKeeperVerbs


class ZooKeeperBackend:
    """One session of the process, for all of its threads, event loops and renewals: its requests never queue up."""

    capabilities = Capabilities(fencing=True, waiting=True, queue=True, transfer=False, listing=True, min_expire=0.01)
    settings = frozenset({"LOCATION", "OPTIONS"})

    def __init__(self, config: StoreConfig) -> None:
        self._address = address(config)
        wakeups, self._executors = Wakeups(), Executors("zookeeper")
        self._session = Session(self._address, wakeups.wake_all)
        self._verbs = ZooKeeperVerbs(self._session, Places(wakeups))
        self._sync_port = BlockingPort(self._verbs, THREADS, wakeups, self._executors)
        self._async_port = BlockingPort(self._verbs, TASKS, wakeups, self._executors)

    def sync_port(self) -> BlockingPort:
        return self._sync_port

    def async_port(self) -> BlockingPort:
        return self._async_port

    def renewal_port(self) -> BlockingPort:
        return self._sync_port

    def close(self) -> None:
        self._verbs.park()
        self._session.close()
        self._executors.close()
