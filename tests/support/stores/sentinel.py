"""A master, its replicas and a sentinel of our own: from redis-server itself, whose other half a sentinel is."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis

from distlock_web.testing.servers import OwnServer, RedisServer, redis_program
from tests.support.failover import in_step
from tests.support.requirements import require_redis
from tests.support.waiting import eventually

#: What the sentinels call the master.
SERVICE = "mymaster"
#: Milliseconds of silence after which the sentinel calls a server down by itself: it shall not during a test.
PATIENT = 60_000


class SentinelServer(OwnServer):
    """One sentinel, which alone decides. ``args`` are arguments of ``redis-server``."""

    name = "sentinel"

    def __init__(self, master_port: int, *args: str) -> None:
        super().__init__(*args)
        self._lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {PATIENT}",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]

    def prepare(self) -> None:
        Path(self.folder, "sentinel.conf").write_text("\n".join([*self._lines, ""]))  # it rewrites this file

    def command(self, port: int) -> list[str]:
        config = str(Path(self.folder, "sentinel.conf"))
        return [redis_program(), config, "--sentinel", "--port", str(port), "--bind", "127.0.0.1"]

    def answers(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))


class SentinelSetup:
    """``with SentinelSetup(replicas=2) as setup``: what the sentinel names is a master with that many replicas."""

    def __init__(self, replicas: int) -> None:
        self.servers = [RedisServer("--repl-diskless-sync-delay", "0") for _ in range(replicas + 1)]
        self._dead = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            self.clients = [
                stack.enter_context(redis.Redis.from_url(server.url, decode_responses=True)) for server in self.servers
            ]
            others = self.clients[1:]
            for client in others:
                client.replicaof("127.0.0.1", str(self.servers[0].port))
            for client in others:
                eventually(partial(in_step, client), "a replica follows")
            self.sentinel = stack.enter_context(SentinelServer(self.servers[0].port))
            self.ask = stack.enter_context(redis.Redis(port=self.sentinel.port, decode_responses=True)).execute_command
            eventually(lambda: len(self.ask("SENTINEL", "REPLICAS", SERVICE)) == len(others), "replicas are known")
            self.settled(len(others))  # the stream begins up to a second after the link is up
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            with contextlib.suppress(RuntimeError):  # it was killed
                server.resume()
        self._stack.close()

    def url(self, query: str = "") -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}/0{query and '?'}{query}"

    @property
    def master(self) -> int:
        """Which of the servers the sentinel names."""
        _, port = self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return [server.port for server in self.servers].index(int(port))

    def settled(self, replicas: int) -> None:
        """Return when the master that the sentinel names has so many replicas that have all it has."""

        def is_settled() -> bool:
            with contextlib.suppress(redis.RedisError):
                client = self.clients[self.master]
                return (
                    client.role()[0] == "master" and client.set("settled", 1) and client.wait(replicas, 50) >= replicas
                )
            return False

        eventually(is_settled, f"a master with {replicas} replicas")

    def cut_off(self, replica: int) -> None:
        """From now on this replica hears nothing of its master, though the sentinel finds both well."""
        client = self.clients[replica]
        client.config_set("masterauth", "wrong")
        client.execute_command("CLIENT", "KILL", "TYPE", "MASTER")
        eventually(lambda: not in_step(client), "the replica hears nothing")

    def fail_over(self) -> None:
        """Kill the master; return when another one is named and has the remaining replicas."""
        self._dead = self.master
        self.servers[self._dead].kill()
        self.until_failed_over()
        self.settled(len(self.servers) - 2)

    def until_failed_over(self) -> None:
        """Return when the sentinel names another master than before.

        It is asked to, for what it notices by itself depends on time: it never promotes a replica that had lost its
        master ten times ``down-after-milliseconds`` before that was found down, however long a test waits for it.
        """
        before = self.master

        def is_another() -> bool:
            is_idle = "failover_in_progress" not in str(self.ask("SENTINEL", "MASTER", SERVICE))
            if self.master != before:
                return True
            if is_idle:  # looked at first: one that has ended meanwhile is not begun again
                with contextlib.suppress(redis.ResponseError):  # it has not heard of the replica for a moment
                    self.ask("SENTINEL", "FAILOVER", SERVICE)
            return False

        eventually(is_another, "the sentinel names another master")

    def switch_over(self) -> None:
        """Fail over while the master is well; return when it has been made a replica."""
        self.until_failed_over()
        self.settled(len(self.servers) - 1)

    def rejoin(self) -> None:
        """The killed master is back, as a replica of the new one; the sentinel would see to that only after seconds."""
        self.servers[self._dead].start()
        self.clients[self.master].config_set("masterauth", "")
        self.clients[self._dead].replicaof("127.0.0.1", str(self.servers[self.master].port))
        self.settled(len(self.servers) - 1)


class FakeSentinel:
    """It names the server on the port ``names``, whatever that is, and does nothing else."""

    def __init__(self, names: int) -> None:
        self.names = names
        self.asked = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(4096):
                    # redis-py introduces itself first. Each of these is one command, whole in what was read.
                    connection.sendall(b"+OK\r\n" * data.count(b"CLIENT\r\n"))
                    if b"SENTINEL" in data:
                        self.asked += 1
                        connection.sendall(b"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n%d\r\n" % self.names)


@pytest.fixture(scope="session")
def sentinel_setup() -> Iterator[SentinelSetup]:
    """A master with two replicas, for the whole session; tests that let one fail have their own."""
    require_redis()
    with SentinelSetup(2) as setup:
        yield setup


@pytest.fixture
def sentinel_settings(sentinel_setup: SentinelSetup) -> dict[str, Any]:
    """One entry of ``DISTLOCK``: an empty master that a sentinel names."""
    sentinel_setup.clients[0].flushall()
    return {"LOCATION": sentinel_setup.url()}
