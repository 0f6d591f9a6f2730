"""A ZooKeeper for a test session: Debian's jars, one server on the loopback, started and stopped as the others are."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distlock_web.testing.servers import OwnServer, ServerMissing, free_port
from tests.support.waiting import eventually

#: ZooKeeper, which names most of what it needs itself, and a logger that says nothing.
JARS = (Path("/usr/share/java/zookeeper.jar"), Path("/usr/share/java/slf4j-nop.jar"))
#: Milliseconds: sessions live from two to as many ticks as below, and end on a tick.
TICK = 100
MAX_SESSION = 120_000


def zookeeper_programs() -> tuple[str, str]:
    """The path of ``java`` and ZooKeeper's class path. Raises ``ServerMissing``."""
    java = shutil.which("java")
    if java is None or not JARS[0].exists():
        raise ServerMissing(f"java is not on PATH, or there is no {JARS[0]}")
    return java, ":".join(map(str, JARS))


@contextmanager
def zookeeper_ensemble(count: int = 3) -> Iterator[Sequence[ZooKeeperServer]]:
    """Several servers that are one ZooKeeper, when they have a leader."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    peers = [f"server.{ident}=127.0.0.1:{peer}:{vote}" for ident, (peer, vote) in enumerate(ports, 1)]
    servers = [_Peer(ident, *peers) for ident in range(1, count + 1)]
    with ExitStack() as running, ThreadPoolExecutor(count) as together:
        for server in together.map(lambda server: server.__enter__(), servers):
            running.push(server)
        eventually(lambda: leader_of(servers), "they have a leader")
        yield servers


def leader_of(servers: Sequence[ZooKeeperServer]) -> ZooKeeperServer | None:
    """Who leads the ensemble, as far as they answer."""
    return next((server for server in servers if server.says("srvr").find("Mode: leader") >= 0), None)


class ZooKeeperServer(OwnServer):
    """A standalone ZooKeeper of our own: ``with ZooKeeperServer() as server:``. ``settings``: lines of its zoo.cfg."""

    name = "zookeeper"

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self._settings = settings

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}"

    def command(self, port: int) -> list[str]:
        settings = [
            f"clientPort={port}",
            "clientPortAddress=127.0.0.1",
            f"dataDir={self.folder}/data",
            f"tickTime={TICK}",
            f"maxSessionTimeout={MAX_SESSION}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,mntr,srvr,cons",
            *self._settings,
        ]
        Path(self.folder, "zoo.cfg").write_text("\n".join(settings) + "\n")
        java, class_path = zookeeper_programs()
        light = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto"]
        quick = ["-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [java, *light, *quick, "-cp", class_path, main, f"{self.folder}/zoo.cfg"]

    def answers(self, connection: socket.socket) -> bool:
        return _ask(connection, "srvr").startswith("Zookeeper version")

    def says(self, word: str) -> str:
        """Its answer to one of the words of four letters; nothing, if it does not run."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                return _ask(connection, word)
        except OSError:
            return ""

    def count(self, what: str) -> int:
        """A number that the server tells of itself, such as ``zk_packets_received``."""
        return int(dict(line.split("\t", 1) for line in self.says("mntr").splitlines() if "\t" in line)[what])


class _Peer(ZooKeeperServer):
    """One server of an ensemble."""

    def __init__(self, ident: int, *peers: str) -> None:
        super().__init__("initLimit=100", "syncLimit=50", *peers)
        self._ident = ident

    def prepare(self) -> None:
        Path(self.folder, "data").mkdir()
        Path(self.folder, "data", "myid").write_text(str(self._ident))

    def answers(self, connection: socket.socket) -> bool:
        return _ask(connection, "srvr") != ""  # alone it serves nobody


def _ask(connection: socket.socket, word: str) -> str:
    connection.sendall(word.encode())
    said = b""
    while part := connection.recv(65536):
        said += part
    return said.decode()
