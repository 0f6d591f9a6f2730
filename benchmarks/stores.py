"""A free lock on each store, beside what that store's users lock with: pottery, advisory locks, GET_LOCK, kazoo's Lock.

Most references have no lease: PostgreSQL's and MariaDB's locks live as long as a connection, kazoo's as long as a
session. That of Redlock is the least that could be sent: SET NX to five servers, and a DEL where the token is the same.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

import distlock_web
from distlock_web.testing.servers import RedisServer, ServerMissing
from tests.support.database_servers import MariaDBServer, PostgresServer
from tests.support.stores.redlock import NODES, make_old, redlock_url
from tests.support.zookeeper_server import ZooKeeperServer

from .plan import Bench, in_turns
from .results import Case, Measure

OURS, KEY, EXPIRE = "distlock_web", "order:42", 60
TIME = (Measure("time", "µs", compared=True),)
WARM_UP = 5

Lock = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Store:
    """A store, and how its own users lock in it."""

    name: str
    serve: Callable[[ExitStack], tuple[str, dict[str, Lock]]]  #: starts it; its URL, and others' locks by their names

    @property
    def case(self) -> str:
        return f"{self.name}, 1 thread"


def run(bench: Bench) -> Iterator[Case]:
    bench.expect((2 * len(STORES) + 1) * bench.plan.rounds)  # Redlock is beside two others
    for store in STORES:
        yield _case(bench, store)


def _case(bench: Bench, store: Store) -> Case:
    case = Case(store.case, f"A free lock in {store.name}, 1 thread", TIME, "")
    with ExitStack() as stack:
        try:
            url, others = store.serve(stack)
        except (ServerMissing, ImportError) as missing:
            case.notes.append(f"{store.name} was left out: {missing}.")
            return case
        plain = {"LOCATION": url.partition("?")[0]}  # without options
        registry = distlock_web.configure({"default": {"LOCATION": url}, "plain": plain})
        stack.callback(registry.close)
        locks = {**others, OURS: lambda: distlock_web.lock(KEY, expire=EXPIRE)}
        case.reference = next(iter(others))
        fill = {}
        for name, lock in locks.items():
            _seconds(lock, WARM_UP)  # connects, makes tables
            fill[name] = max(WARM_UP, int(bench.plan.slice / _seconds(lock, WARM_UP) * WARM_UP))
        for name in in_turns(list(locks), bench.plan.rounds):
            case.add(name, time=_seconds(locks[name], fill[name]) / fill[name] * 1e6)
            bench.step(f"{case.name}: {name}")
    return case


def _seconds(lock: Lock, cycles: int) -> float:
    since = time.perf_counter()
    for _ in range(cycles):
        with lock():
            pass
    return time.perf_counter() - since


# How the users of each store lock in it -----------------------------------------------------------------------------


def _redlock(stack: ExitStack) -> tuple[str, dict[str, Lock]]:
    import pottery

    servers = [stack.enter_context(RedisServer()) for _ in range(NODES)]
    # As it is used: each vote asks whether its node has restarted. So the nodes have to know each other for longer.
    url = redlock_url(servers, restart_delay=EXPIRE)
    with closing(distlock_web.configure({"default": {"LOCATION": url}})) as registry:
        registry.store("default").backend.prepare()
    for server in servers:
        make_old(server, 2 * EXPIRE)
    masters = {stack.enter_context(redis.Redis.from_url(server.url)) for server in servers}
    locks: dict[str, Lock] = {
        "plain quorum": _plain_quorum(list(masters)),
        "pottery Redlock": lambda: pottery.Redlock(key=KEY, masters=masters, auto_release_time=EXPIRE),
    }
    return url, locks


def _plain_quorum(masters: list[redis.Redis]) -> Lock:
    """All are asked before an answer is read. It knows no restart, no clock, no fence, no undo, and nobody waits."""
    release = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
    hashes = {master.script_load(release) for master in masters}
    connections = [master.connection_pool.get_connection() for master in masters]

    def ask(*words: str | int) -> None:
        for connection in connections:
            connection.send_command(*words)  # type: ignore[no-untyped-call]
        answers = [connection.read_response() for connection in connections]
        assert sum(map(bool, answers)) > NODES // 2

    @contextmanager
    def lock() -> Iterator[None]:
        token = os.urandom(16).hex()
        ask("SET", "plain:" + KEY, token, "NX", "PX", EXPIRE * 1000)
        try:
            yield
        finally:
            ask("EVALSHA", *hashes, 1, "plain:" + KEY, token)

    return lock


def _replica(stack: ExitStack) -> tuple[str, dict[str, Lock]]:
    """A lock that a replica has to confirm, beside the same without."""
    server, replica = stack.enter_context(RedisServer()), stack.enter_context(RedisServer())
    with redis.Redis.from_url(replica.url) as client:
        client.replicaof("127.0.0.1", str(server.port))
        while client.info("replication")["master_link_status"] != "up":
            time.sleep(0.05)
    time.sleep(1.5)  # the stream begins up to a second later
    without = partial(distlock_web.lock, KEY, expire=EXPIRE, store="plain")
    return f"{server.url}?min_replicas=1", {"without `min_replicas`": without}


def _postgres(stack: ExitStack) -> tuple[str, dict[str, Lock]]:
    import psycopg

    server = stack.enter_context(PostgresServer())
    connection = stack.enter_context(psycopg.connect(server.url, autocommit=True))

    @contextmanager
    def advisory() -> Iterator[None]:
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (KEY,))
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", (KEY,))

    return server.url, {"`pg_advisory_lock`": advisory}


def _mariadb(stack: ExitStack) -> tuple[str, dict[str, Lock]]:
    import pymysql

    server = stack.enter_context(MariaDBServer())
    connection = stack.enter_context(
        closing(pymysql.connect(host="127.0.0.1", port=server.port, user="root", database="test", autocommit=True))
    )

    @contextmanager
    def get_lock() -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 10)", (KEY,))
            try:
                yield
            finally:
                cursor.execute("SELECT RELEASE_LOCK(%s)", (KEY,))

    return server.url, {"`GET_LOCK`": get_lock}


def _sqlite(stack: ExitStack) -> tuple[str, dict[str, Lock]]:
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="distlock-bench-")))
    connection = stack.enter_context(closing(sqlite3.connect(folder / "reference.sqlite3", isolation_level=None)))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE locks (name TEXT PRIMARY KEY)")

    @contextmanager
    def row() -> Iterator[None]:
        connection.execute("INSERT INTO locks VALUES (?)", (KEY,))
        try:
            yield
        finally:
            connection.execute("DELETE FROM locks WHERE name = ?", (KEY,))

    return f"sqlite:///{folder}/locks.sqlite3", {"a row that is inserted and deleted": row}


def _zookeeper(stack: ExitStack) -> tuple[str, dict[str, Lock]]:
    from kazoo.client import KazooClient

    server = stack.enter_context(ZooKeeperServer())
    client: Any = KazooClient(f"127.0.0.1:{server.port}")
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    return server.url, {"kazoo Lock": lambda: client.Lock("/reference/" + KEY)}


STORES = (
    Store("Redlock over five servers", _redlock),
    Store("Redis, `min_replicas=1`", _replica),
    Store("PostgreSQL", _postgres),
    Store("MariaDB", _mariadb),
    Store("SQLite", _sqlite),
    Store("ZooKeeper", _zookeeper),
)
