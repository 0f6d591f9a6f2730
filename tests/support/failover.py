"""Two servers behind one address (a DNS name, a virtual IP, a TCP balancer), of which the second takes over.

Nobody closes a connection that is open: it stays with the server that is a replica from then on.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import redis

from distlock_web.testing.servers import RedisServer

from .proxy import Proxy
from .waiting import eventually


class Failover:
    def __init__(self, first: RedisServer, second: RedisServer) -> None:
        self.first = redis.Redis.from_url(first.url, decode_responses=True)
        self.second = redis.Redis.from_url(second.url, decode_responses=True)
        self._ports = first.port, second.port
        self._front = Proxy(first.port)

    @property
    def url(self) -> str:
        return self._front.url

    def __enter__(self) -> Self:
        self._front.__enter__()
        self.second.replicaof("127.0.0.1", str(self._ports[0]))
        eventually(lambda: in_step(self.second), "the second follows")
        self._replicate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._front.__exit__(kind, error, trace)
        self.first.close()
        self.second.close()

    def take_over(self) -> None:
        """The second is the master, the first its replica, and new connections reach the master. No write is lost."""
        self._replicate()
        self._front.lead_to(self._ports[1])
        self.second.replicaof("NO", "ONE")
        self.first.replicaof("127.0.0.1", str(self._ports[1]))
        eventually(lambda: in_step(self.first), "the first follows")

    def _replicate(self) -> None:
        """Return when the second has all that the first has; the link is up before that."""
        self.first.set("replicated", "yes", px=1000)
        assert self.first.wait(1, 20_000) == 1


def in_step(client: redis.Redis) -> bool:
    return bool(client.info("replication")["master_link_status"] == "up")
