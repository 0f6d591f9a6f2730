"""Locks in etcd 3.4: an example of a store on a blocking driver, for docs/backends.md. It is no store of the package.

``"LOCATION": "etcd://127.0.0.1:2379/locks"``: keys begin with the path. One member of the cluster is asked, in JSON
over HTTP, with the client of the standard library.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar
from urllib.parse import urlsplit

from distlock_web.core.backend import Capabilities
from distlock_web.core.config import StoreConfig
from distlock_web.core.setting import Setting, check_seconds, table
from distlock_web.kit.blocking_port import BlockingBackend
from distlock_web.kit.wakeups import Wakeups

from .news import News
from .server import Connections, Server
from .verbs import EtcdVerbs

OPTIONS = table(
    Setting("timeout", partial(check_seconds, minimum=0.05), 2.0, "seconds until a request without an answer fails")
)
#: For requests, and for renewals alone.
CONNECTIONS, RENEWAL_CONNECTIONS = 10, 2


class EtcdBackend(BlockingBackend):
    """``min_expire``: the least that etcd grants; with its usual settings it makes two seconds of that."""

    capabilities = Capabilities(queue=True, transfer=True, min_expire=1.0)
    settings: ClassVar[frozenset[str]] = frozenset({"LOCATION", "OPTIONS"})
    options = OPTIONS

    def __init__(self, config: StoreConfig) -> None:
        options = config.read_options(OPTIONS)
        host, port, path = _address(config)
        wakeups = Wakeups()
        self._server = Server(host, port, options["timeout"])
        self._news = News(self._server, path, wakeups)
        self._connections = [Connections(self._server, size) for size in (CONNECTIONS, RENEWAL_CONNECTIONS)]
        verbs, renewing = (EtcdVerbs(each, path, self._news) for each in self._connections)
        super().__init__("etcd", verbs, wakeups, renewing=renewing)

    def close(self) -> None:
        self._server.outage.close()
        self._news.close()
        for each in self._connections:
            each.close()
        super().close()


def _address(config: StoreConfig) -> tuple[str, int, bytes]:
    try:
        parts = urlsplit(config.location or "etcd://127.0.0.1:2379/locks")
        host, port = parts.hostname, parts.port or 2379
    except ValueError:  # a port that is none, a bracket that is not closed
        host = None
    if not host or parts.scheme != "etcd" or parts.username or parts.query or parts.fragment:
        raise config.wrong_location("a URL such as etcd://10.0.0.1:2379/locks")
    return host, port, (parts.path.strip("/") or "locks").encode() + b"/"
