"""One Redis, behind a sentinel, a cluster, and a quorum: a message is one command, or one answer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import urlencode
from zlib import crc32

import redis

from distlock_web.backends.redis import scripts
from distlock_web.backends.redis.scripts.calls import Script
from distlock_web.backends.redlock import scripts as quorum_scripts
from distlock_web.testing.servers import RedisServer
from tests.support.stores.cluster import MASTERS, Cluster, ClusterNode
from tests.support.stores.redlock import redlock_url
from tests.support.stores.sentinel import SERVICE, SentinelServer

from .steps import Strike
from .way import Way
from .wire import Message


def _known() -> dict[bytes, str]:
    """The names of our scripts, by what they are called by."""
    found = {}
    for module in (scripts, quorum_scripts):
        for name, script in vars(module).items():
            if isinstance(script, Script):
                front = "q-" if module is quorum_scripts else ""
                found[_sha(script)] = found[script.source] = front + name.lower()
    return found


def _sha(script: Script) -> bytes:
    match = re.search(rb"[0-9a-f]{40}", script._by_sha)
    assert match is not None
    return match.group()


KNOWN = _known()
SOURCES = [key.decode() for key in KNOWN if len(key) != 40]


class Resp:
    """RESP 2 and 3."""

    def __init__(self) -> None:
        self._asked = self._answered = b""
        self._subscribed = False

    def requests(self, data: bytes) -> Sequence[Message]:
        self._asked += data
        found = []
        while (end := _end(self._asked, 0)) is not None:
            whole, self._asked = self._asked[:end], self._asked[end:]
            words = _words(whole)
            kind = words[0].lower().decode()
            if kind in ("evalsha", "eval"):
                name = KNOWN.get(words[1], "probe")
                kind = name if kind == "evalsha" else f"{name}-source"
            elif kind in ("client", "cluster", "sentinel", "pubsub"):
                kind += f"-{words[1].lower().decode()}"
            found.append(Message(kind, whole))
        return found

    def answers(self, data: bytes) -> Sequence[Message]:
        self._answered += data
        found = []
        while (end := _end(self._answered, 0)) is not None:
            whole, self._answered = self._answered[:end], self._answered[end:]
            pushed = whole.startswith((b"*3\r\n$7\r\nmessage\r\n", b">3\r\n$7\r\nmessage\r\n"))
            found.append(Message("message" if pushed else "answer", whole, answered=not pushed))
        return found


def _end(data: bytes, at: int) -> int | None:
    """Where the value that begins there ends; None: it is not whole."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, after = data[at : at + 1], line + 2
    if kind in b"$=!":
        size = int(data[at + 1 : line])
        end = after + size + 2 if size >= 0 else after
        return end if end <= len(data) else None
    if kind in b"*>~%":
        for _ in range(int(data[at + 1 : line]) * (2 if kind == b"%" else 1)):
            found = _end(data, after)
            if found is None:
                return None
            after = found
    return after


def _words(whole: bytes) -> list[bytes]:
    words, at = [], whole.find(b"\r\n") + 2
    while at < len(whole):
        line = whole.find(b"\r\n", at)
        size = int(whole[at + 1 : line])
        words.append(whole[line + 2 : line + 2 + size])
        at = line + 4 + size
    return words


#: What opens a connection, or makes it known where a server is: of these the first of a party.
OPENING = ("setinfo", "hello", "slots", "myid", "master-addr-by-name", "numsub", "publish")


class RedisWay(Way):
    name = "redis"
    backend = "redis"
    example: ClassVar[Mapping[str, Any]] = {"LOCATION": "redis://127.0.0.1:1/0"}
    servers: list[RedisServer]

    @classmethod
    def of_a_kind(cls, kind: str) -> int:
        return 1 if kind.endswith(OPENING) else 3

    def options(self) -> dict[str, Any]:
        return {"socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}

    def make(self, stack: ExitStack) -> list[RedisServer]:
        return [stack.enter_context(RedisServer())]

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self.servers = self.make(self._stack)
        self.clients = [
            self._stack.enter_context(redis.Redis.from_url(server.url, decode_responses=True))
            for server in self.servers
        ]
        self.load_scripts()
        return self

    def load_scripts(self) -> None:
        """Or the first run of a director would send other messages than the next."""
        for client in self.clients:
            for source in SOURCES:
                client.script_load(source)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._stack.close()

    def near(self) -> dict[str, Any]:
        return {"LOCATION": self.servers[0].url}

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        wire = self.wire(party, strike, self.servers[0].port, Resp)
        return {"LOCATION": f"redis://127.0.0.1:{wire.port}/0", "OPTIONS": self.options()}

    def clear(self) -> None:
        for client in self.clients:
            client.flushall()

    def is_ours(self, name: str) -> bool:
        return True

    def left(self) -> list[str]:
        found = []
        for client in self.clients:
            for name in client.scan_iter(count=1000):
                if self.is_ours(name) and client.pttl(name) == -1:
                    found.append(f"{name} ({client.type(name)}) has no TTL")
        return found


class SentinelWay(RedisWay):
    """The sentinel's messages are tried, too: ``sentinel-...``. It names the party's own way to the master."""

    name = "sentinel"

    @classmethod
    def of_a_kind(cls, kind: str) -> int:
        return 1  # the rest is as on one Redis

    def __enter__(self) -> Self:
        super().__enter__()
        self._sentinel = self._stack.enter_context(SentinelServer(self.servers[0].port))
        return self

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        port = self.servers[0].port
        master = self.wire(party, strike, port, Resp)

        def alter(answer: bytes) -> bytes:
            return answer.replace(b"\r\n%d\r\n" % port, b"\r\n%d\r\n" % master.port)

        wire = self.wire(party, strike, self._sentinel.port, Resp, front="sentinel-", alter=alter)
        return {"LOCATION": f"redis+sentinel://127.0.0.1:{wire.port}/{SERVICE}/0", "OPTIONS": self.options()}


class ClusterWay(RedisWay):
    name = "cluster"
    spare = 2 * MASTERS

    @classmethod
    def of_a_kind(cls, kind: str) -> int:
        return min(2, super().of_a_kind(kind))

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[Mapping[str, Any]]:
        """One for all directors, who have keys of their own there: to make one takes seconds."""
        with ExitStack() as stack:
            cluster = Cluster([stack.enter_context(ClusterNode()) for _ in range(MASTERS)])
            yield {"ports": [node.port for node in cluster.nodes]}

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._ports: list[int] = self.shared["ports"]
        self.clients = [
            self._stack.enter_context(redis.Redis(port=port, decode_responses=True)) for port in self._ports
        ]
        self.load_scripts()
        return self

    def key(self, key: str) -> str:
        return f"{key}:{os.getpid()}"

    def clear(self) -> None:
        """Each key is new."""

    def is_ours(self, name: str) -> bool:
        return f":{os.getpid()}" in name

    def near(self) -> dict[str, Any]:
        first, second, *_ = self._ports
        return {"LOCATION": f"redis+cluster://127.0.0.1:{first},127.0.0.1:{second}/"}

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        ports: dict[int, int] = {}

        def alter(answer: bytes) -> bytes:
            """What names a node names the way to it."""
            for port, wire in ports.items():
                answer = answer.replace(b":%d\r\n" % port, b":%d\r\n" % wire)
            return answer

        for port in self._ports:
            ports[port] = self.wire(party, strike, port, Resp, alter=alter).port
        first, second, *_ = ports.values()
        return {"LOCATION": f"redis+cluster://127.0.0.1:{first},127.0.0.1:{second}/", "OPTIONS": self.options()}


class RedlockWay(RedisWay):
    """Three nodes; ``0-...`` are the messages of the first."""

    name = "redlock"
    backend = "redlock"
    example: ClassVar[Mapping[str, Any]] = {"LOCATION": "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/0"}
    NODES: ClassVar[int] = 3
    spare = 2 * NODES

    @classmethod
    def of_a_kind(cls, kind: str) -> int:
        """Of the nodes the one that is asked first, and one of the others."""
        return 0 if kind.lstrip("<").startswith("2-") else min(2, super().of_a_kind(kind))

    def make(self, stack: ExitStack) -> list[RedisServer]:
        return [stack.enter_context(RedisServer()) for _ in range(self.NODES)]

    def near(self) -> dict[str, Any]:
        self.routes["director"] = {f"node{number}": server.port for number, server in enumerate(self.servers)}
        return {"LOCATION": self._named()}

    def seen_by_parties(self) -> dict[str, Any]:
        return {"LOCATION": redlock_url(self.servers)}

    def key(self, key: str) -> str:
        """The first node is asked first."""
        return next(f"{key}:{n}" for n in count() if crc32(f"disLock:{key}:{n}".encode()) % self.NODES == 0)

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        self.routes[party] = {
            f"node{number}": self.wire(party, strike, server.port, Resp, front=f"{number}-").port
            for number, server in enumerate(self.servers)
        }
        return {"LOCATION": self._named(**self.options())}

    def _named(self, **options: Any) -> str:
        nodes = ",".join(f"node{number}" for number in range(self.NODES))
        return f"redlock://{nodes}/0?{urlencode({'restart_delay': 0, **options})}"
