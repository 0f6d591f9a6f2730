"""The stores whose server can fail, each behind proxies: what the table of faults is made of."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import redis
from sqlalchemy.engine import make_url

from distlock_web import configure
from distlock_web.testing.servers import OwnServer, RedisServer
from tests.support.etcd_server import EtcdServer, etcd_program
from tests.support.proxy import Proxy
from tests.support.requirements import require
from tests.support.stores.etcd_fixtures import etcd_entry
from tests.support.stores.redlock import redlock_url
from tests.support.waiting import eventually
from tests.support.zookeeper_server import ZooKeeperServer, leader_of, zookeeper_ensemble, zookeeper_programs

#: Seconds that an answer is waited for.
TIMEOUT = 0.7


@dataclass
class FaultyStore:
    """The default store, and what can happen to all of its servers."""

    timeout: float  #: seconds that it waits for an answer
    servers: Sequence[OwnServer]
    proxies: Sequence[Proxy]
    change: bytes  #: a part of each request that takes the lock ``order:7``, or gives it back
    writes_hang: Callable[[], AbstractContextManager[None]]  #: meanwhile they do, and reads are answered

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """They stand still; the kernel accepts connections."""
        pids: list[int] = []
        try:
            for server in self.servers:
                _stop(server.pid, pids)
                for child in _children(server.pid):  # all of them: it has none more now
                    _stop(child, pids)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        for server in self.servers:
            server.restart()

    def forget_connections(self) -> None:
        """A firewall does, of all that are open now: nothing is answered on them, and nothing says so."""
        for proxy in self.proxies:
            proxy.forget()

    def lose_answer(self) -> None:
        """Of one server, to the next request that changes something: it is done, and the connection breaks."""
        self.proxies[0].lose_answer(self.change)

    @property
    def lost(self) -> int:
        return self.proxies[0].lost


def _children(pid: int) -> list[int]:
    """PostgreSQL has a process for each connection."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _stop(pid: int, stopped: list[int]) -> None:
    """And return when it really stands still: a thread of it may answer one request more."""
    stopped.append(pid)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _stands_still(pid), "it stands still")


def _stands_still(pid: int) -> bool:
    """Each of its threads."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(line.rpartition(")")[2].split()[0] in "TtZX" for line in lines)
    return False


@contextmanager
def redis_store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    server: RedisServer = request.getfixturevalue("make_redis")()
    with Proxy(server.port) as proxy:
        options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        configure({"default": {"LOCATION": proxy.url, "OPTIONS": options}})
        yield FaultyStore(TIMEOUT, [server], [proxy], b"order:7", lambda: _redis_writes_hang([server]))


@contextmanager
def redlock_store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    servers: list[RedisServer] = request.getfixturevalue("own_nodes")
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server.port)) for server in servers]
        url = redlock_url(proxies, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)  # type: ignore[arg-type]
        configure({"default": {"LOCATION": url}})
        yield FaultyStore(TIMEOUT, servers, proxies, b"order:7", lambda: _redis_writes_hang(servers))


@contextmanager
def _redis_writes_hang(servers: Sequence[RedisServer]) -> Iterator[None]:
    """As while a failover is prepared. Scripts are writes."""
    with ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(server.url)) for server in servers]
        for client in clients:
            client.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
        try:
            yield
        finally:
            for client in clients:
                client.execute_command("CLIENT", "UNPAUSE")


@contextmanager
def postgres_store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    with _sql_store(request, "postgres", _postgres_writes_hang) as store:
        yield store


@contextmanager
def mariadb_store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    with _sql_store(request, "mariadb", _mariadb_writes_hang) as store:
        yield store


@contextmanager
def _sql_store(
    request: pytest.FixtureRequest, kind: str, writes_hang: Callable[[int], AbstractContextManager[None]]
) -> Iterator[FaultyStore]:
    server: OwnServer = request.getfixturevalue(f"{kind}_server")
    settings: dict[str, Any] = request.getfixturevalue(f"{kind}_settings")
    with Proxy(server.port) as proxy:
        url = make_url(settings["LOCATION"]).set(port=proxy.port).render_as_string(hide_password=False)
        configure({"default": {**settings, "LOCATION": url, "OPTIONS": {"timeout": 1.5}}})  # MariaDB knows no less
        yield FaultyStore(1.5, [server], [proxy], b"COMMIT", lambda: writes_hang(server.port))


@contextmanager
def _postgres_writes_hang(port: int) -> Iterator[None]:
    """COMMIT waits for a replica that is not there."""
    where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": "postgres", "autocommit": True}
    with psycopg.connect(**where) as connection, psycopg.connect(**where) as other, ThreadPoolExecutor(1) as thread:
        writing: Future[Any] = thread.submit(int)

        def wait_for(standby: str) -> None:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
            connection.execute("SELECT pg_reload_conf()")

        def hangs() -> bool:
            """A COMMIT does: nothing else shows that the server's processes have read what they were told to."""
            nonlocal writing
            if writing.done():
                writing = thread.submit(other.execute, "SELECT pg_logical_emit_message(true, '', '')")
            waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
            return connection.execute(waiting, [other.info.backend_pid]).fetchone() is not None

        wait_for("nobody")
        try:
            eventually(hangs, "a COMMIT hangs")
            yield
        finally:
            wait_for("")


@contextmanager
def _mariadb_writes_hang(port: int) -> Iterator[None]:
    """As while a backup begins."""
    with closing(pymysql.connect(host="127.0.0.1", port=port, user="root")) as connection:
        connection.cursor().execute("FLUSH TABLES WITH READ LOCK")
        yield


@contextmanager
def zookeeper_store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    """An ensemble where its writes are to hang: it answers no reads without its leader for long, and begins slowly."""
    require("zookeeper", zookeeper_programs)
    with ExitStack() as stack:
        servers: Sequence[ZooKeeperServer]
        if "no_writes" in request.function.__name__:
            servers = stack.enter_context(zookeeper_ensemble())
        else:
            servers = [stack.enter_context(ZooKeeperServer())]
        leader = leader_of(servers)
        ours = next((server for server in servers if server is not leader), servers[0])
        proxy = stack.enter_context(Proxy(ours.port))
        options = {"session_timeout": 20.0, "timeout": TIMEOUT}
        configure({"default": {"LOCATION": f"zookeeper://127.0.0.1:{proxy.port}", "OPTIONS": options}})

        @contextmanager
        def writes_hang() -> Iterator[None]:
            assert leader is not None
            leader.pause()
            try:
                yield
            finally:
                leader.resume()

        yield FaultyStore(TIMEOUT, servers, [proxy], b"order:7", writes_hang)


@contextmanager
def etcd_store(request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    """The example of docs/backends.md. One member alone answers its reads, too, only while it can write."""
    require("etcd", etcd_program)
    with EtcdServer() as server, Proxy(server.port) as proxy:
        configure({"default": etcd_entry(proxy.port, "faulty", timeout=TIMEOUT)})
        comparison = b'"compare": [{'  # only a transaction that changes something has one
        store = FaultyStore(TIMEOUT, [server], [proxy], comparison, lambda: store.stopped())
        yield store


FAULTY_STORES = {
    "redis": redis_store,
    "redlock": redlock_store,
    "postgres": postgres_store,
    "mariadb": mariadb_store,
    "zookeeper": zookeeper_store,
    "etcd": etcd_store,
}
