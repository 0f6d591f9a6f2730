"""A PgBouncer of our own in front of a PostgreSQL: each transaction on whichever of its connections is free."""

from __future__ import annotations

import shutil
import socket
import struct
from pathlib import Path

from distlock_web.testing.servers import OwnServer, ServerMissing
from tests.support.database_servers import unprivileged


def pgbouncer_program() -> str:
    """The path of ``pgbouncer``. Raises ``ServerMissing``."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        raise ServerMissing("pgbouncer is not on PATH")
    return found


class PgBouncer(OwnServer):
    name = "pgbouncer"

    def __init__(self, behind: int) -> None:
        super().__init__()
        self.user = unprivileged("postgres")
        self._behind = behind

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self, port: int) -> list[str]:
        file = Path(self.folder, "ini")
        users = Path(self.folder, "users")
        users.write_text('"postgres" ""\n')
        file.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self._behind}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = transaction\n"
            "ignore_startup_parameters = extra_float_digits\n"
            f"default_pool_size = 3\nmin_pool_size = 3\nserver_lifetime = 3600\n"
        )
        return [pgbouncer_program(), str(file)]

    def answers(self, connection: socket.socket) -> bool:
        body = struct.pack("!i", 196608) + b"user\0postgres\0database\0postgres\0\0"
        connection.sendall(struct.pack("!i", len(body) + 4) + body)
        return connection.recv(1) == b"R"
