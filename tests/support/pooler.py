"""A PgBouncer of our own, in front of a PostgreSQL of ours."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from pathlib import Path

from distlock_web.testing.servers import Server, ServerMissing

from .database_servers import unprivileged


def pgbouncer_program() -> str:
    """The path of ``pgbouncer``. Raises ``ServerMissing``."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("pgbouncer", path=path)
    if found is None:
        raise ServerMissing("pgbouncer is not on PATH")
    return found


class PgBouncer(Server):
    """``mode``: ``session``, or ``transaction``, in which a server is lent for one."""

    name = "pgbouncer"

    def __init__(self, postgres: int, mode: str) -> None:
        super().__init__()
        self.user = unprivileged("postgres")
        self._postgres, self._mode = postgres, mode

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self, port: int) -> list[str]:
        Path(self.folder, "users").write_text('"postgres" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": Path(self.folder, "users"),
            "pool_mode": self._mode,
            "ignore_startup_parameters": "extra_float_digits",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        text = f"[databases]\n* = host=127.0.0.1 port={self._postgres}\n[pgbouncer]\n" + "\n".join(lines) + "\n"
        Path(self.folder, "pgbouncer.ini").write_text(text)
        return [pgbouncer_program(), str(Path(self.folder, "pgbouncer.ini"))]

    def answers(self, connection: socket.socket) -> bool:
        words = b"user\0postgres\0database\0postgres\0\0"
        connection.sendall(struct.pack(">II", 8 + len(words), 3 << 16) + words)
        return connection.recv(1) == b"R"
