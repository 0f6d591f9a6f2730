"""Locks in ZooKeeper (3.5.3 or newer): ``"BACKEND": "zookeeper"``. See docs/zookeeper.md."""

from __future__ import annotations

from ...core.backend import Capabilities
from ...core.config import StoreConfig
from ...kit.blocking_port import BlockingBackend
from ...kit.wakeups import Wakeups
from .address import OPTIONS, address
from .places import Places
from .session import Session
from .verbs import ZooKeeperVerbs


class ZooKeeperBackend(BlockingBackend):
    """One session of the process, for all of its threads, event loops and renewals: its requests never queue up."""

    capabilities = Capabilities(queue=True, min_expire=0.01)
    settings = frozenset({"LOCATION", "OPTIONS"})
    options = OPTIONS

    def __init__(self, config: StoreConfig) -> None:
        wakeups = Wakeups()
        self._session = Session(address(config), wakeups.wake_all)
        self._verbs = ZooKeeperVerbs(self._session, Places(wakeups))
        super().__init__("zookeeper", self._verbs, wakeups)

    def close(self) -> None:
        self._verbs.park()
        self._session.close()
        super().close()
