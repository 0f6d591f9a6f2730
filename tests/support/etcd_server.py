"""An etcd for a test session: one member on the loopback, started and stopped as the others are."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from types import TracebackType

from distlock_web.testing.servers import OwnServer, ServerMissing, free_port


def etcd_program() -> str:
    """The path of ``etcd``. Raises ``ServerMissing``."""
    found = shutil.which("etcd")
    if found is None:
        raise ServerMissing("etcd is not on PATH")
    return found


class EtcdServer(OwnServer):
    """``with EtcdServer() as server:``. With these times its shortest lease is one second."""

    name = "etcd"

    def prepare(self) -> None:
        # In memory, where there is such a place: each write is on the disk before it is answered.
        self._data = tempfile.mkdtemp(prefix="distlock-etcd-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        shutil.rmtree(self._data, ignore_errors=True)

    def command(self, port: int) -> list[str]:
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": self._data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "heartbeat-interval": "10",
            "election-timeout": "100",
            "logger": "zap",
            "log-level": "error",
        }
        return [etcd_program(), *(f"--{name}={value}" for name, value in options.items())]

    def answers(self, connection: socket.socket) -> bool:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        said = b""
        while part := connection.recv(65536):
            said += part
        return b'"health":"true"' in said
