"""A ZooKeeper for a test session: Debian's jars, one server on the loopback, started and stopped as the others are."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from distlock_web.testing.servers import Server, ServerMissing

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


class ZooKeeperServer(Server):
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
        connection.sendall(b"srvr")
        said = b""
        while part := connection.recv(4096):
            said += part
        return said.startswith(b"Zookeeper version")

    def count(self, what: str) -> int:
        """A number that the server tells of itself, such as ``zk_packets_received``."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(b"mntr")
            said = b""
            while part := connection.recv(65536):
                said += part
        return int(dict(line.split("\t", 1) for line in said.decode().splitlines() if "\t" in line)[what])
