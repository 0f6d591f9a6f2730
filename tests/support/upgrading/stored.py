"""What stands in a store, as data: taken out of one, and put into another one later. Of each store one class."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import redis
from kazoo.client import KazooClient
from sqlalchemy import MetaData, create_engine, text

Stored = dict[str, Any]

#: What the version before has left, a file for each kind of store.
RECORDED = Path(__file__).with_name("recorded") / "f11b646"
#: Columns that say when something ends; in microseconds, as all times here.
_ENDS = ("expires_at", "deadline")
#: Keys of Redlock's that say which server a node is.
_OF_SERVER = "~quorum"


class Store(Protocol):
    def dump(self) -> Stored: ...

    def load(self, stored: Stored, later: int, ahead: int) -> None:
        """``later``: µs since it was dumped, by which all ends move. ``ahead``: by which fences do, where asked for."""


class InRedis:
    """One server."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port, decode_responses=True)

    def dump(self) -> Stored:
        return {key: self._dumped(key) for key in sorted(self._client.scan_iter("*")) if not key.endswith(_OF_SERVER)}

    def _dumped(self, key: str) -> list[Any]:
        kind, client = self._client.type(key), self._client
        value: Any = client.get(key) if kind == "string" else client.hgetall(key) if kind == "hash" else None
        return [kind, client.pttl(key), value or client.zrange(key, 0, -1, withscores=True)]

    def load(self, stored: Stored, later: int, ahead: int) -> None:
        for key, (kind, ttl, value) in stored.items():
            if kind == "string":
                self._client.set(key, value)
            elif kind == "hash":
                self._client.hset(key, mapping={token: _moved(said, later) for token, said in value.items()})
            else:
                self._client.zadd(key, {member: _score(member, score, later, ahead) for member, score in value})
            self._client.pexpire(key, ttl)


def _moved(share: str, later: int) -> str:
    ends, rest = share.split(" ", 1)
    return f"{int(ends) + later} {rest}"


def _score(member: str, score: float, later: int, ahead: int) -> float:
    return score - ahead if member == "{fences}" else score + later if score > 0 else score


class InRedlock:
    """Each of its nodes."""

    def __init__(self, ports: list[int]) -> None:
        self._nodes = [InRedis(port) for port in ports]

    def dump(self) -> Stored:
        return {str(number): node.dump() for number, node in enumerate(self._nodes)}

    def load(self, stored: Stored, later: int, ahead: int) -> None:
        for number, node in enumerate(self._nodes):
            node.load(stored[str(number)], later, ahead)


class InSQL:
    """A database, whose tables are there."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)
        self._metadata = MetaData()
        self._metadata.reflect(self._engine)

    def dump(self) -> Stored:
        with self._engine.connect() as connection:
            tables = self._metadata.tables.items()
            return {name: [dict(row._mapping) for row in connection.execute(table.select())] for name, table in tables}

    def columns(self) -> Stored:
        return {name: sorted(column.name for column in table.columns) for name, table in self._metadata.tables.items()}

    def load(self, stored: Stored, later: int, ahead: int) -> None:
        with self._engine.begin() as connection:
            for name, rows in stored.items():
                connection.execute(text(f"DELETE FROM {name}"))
                for row in rows:
                    connection.execute(self._metadata.tables[name].insert(), _row(row, later, ahead))
        self._engine.dispose()


def _row(row: Mapping[str, Any], later: int, ahead: int) -> dict[str, Any]:
    moved = {name: value + later if name in _ENDS else value for name, value in row.items()}
    return {**moved, "fence": moved["fence"] + ahead} if "fence" in moved else moved


class InZooKeeper:
    """All below a chroot."""

    def __init__(self, url: str) -> None:
        hosts, _, chroot = url.removeprefix("zookeeper://").partition("/")
        self._hosts, self._root = hosts, f"/{chroot}"

    def dump(self) -> Stored:
        with _connected(self._hosts) as client:
            found: Stored = {}
            waiting = [self._root]
            while waiting:
                path = waiting.pop()
                found[path.removeprefix(self._root)] = client.get(path)[0].decode()
                waiting += [f"{path}/{child}" for child in sorted(client.get_children(path))]
            return found

    def load(self, stored: Stored, later: int, ahead: int) -> None:
        with _connected(self._hosts) as client:
            client.delete(f"{self._root}/distlock", recursive=True)
            for path in sorted(filter(None, stored)):
                client.create(self._root + path, self._data(path, stored[path], ahead))
                if path.count("/") == 2:  # a lock: its next child has a number that none had
                    for _ in range(10):
                        client.delete(client.create(f"{self._root}{path}/x", sequence=True))

    def _data(self, path: str, said: str, ahead: int) -> bytes:
        if path.count("/") != 2:
            return said.encode()
        base, revoked = json.loads(said)
        return json.dumps([base + ahead, revoked]).encode()


class _connected:
    def __init__(self, hosts: str) -> None:
        self._client = KazooClient(hosts, timeout=60)

    def __enter__(self) -> Any:
        self._client.start()
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()


def store_at(kind: str, location: str) -> Store:
    if kind == "zookeeper":
        return InZooKeeper(location)
    if kind in ("redis", "redlock"):
        ports = [int(host.rpartition(":")[2]) for host in location.split("/")[2].split(",")]
        return InRedis(ports[0]) if kind == "redis" else InRedlock(ports)
    return InSQL(location)


def now_us() -> int:
    return time.time_ns() // 1000
