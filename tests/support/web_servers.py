"""Real web servers in processes, and clients that read as much as they like and go away when they like."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

from distlock_web.core.backend import LockInfo
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.servers import free_port

from .waiting import eventually

ROOT = Path(__file__).parents[2]
DJANGO, FLASK = "tests.support.sites.streaming_django", "tests.support.sites.streaming_flask"
SERVERS = {
    "gunicorn sync": ["gunicorn", f"{DJANGO}:wsgi", "--worker-class", "sync"],
    "gunicorn threads": ["gunicorn", f"{DJANGO}:wsgi", "--worker-class", "gthread", "--threads", "8"],
    "uvicorn": ["uvicorn", f"{DJANGO}:asgi", "--lifespan", "off"],
    "flask": ["gunicorn", f"{FLASK}:app", "--worker-class", "gthread", "--threads", "8"],
}
#: What a server prints, in development mode, where something was left open, not awaited or not handled.
COMPLAINTS = ("ResourceWarning", "never awaited", "was destroyed", "never retrieved", "Traceback", "Exception ignored")
#: Django leaves the body of a request open when that of the response fails. The second line comes after every such.
NOT_OURS = ("SpooledTemporaryFile", "ResourceWarning: Enable tracemalloc")


class Server:
    """One of ``SERVERS``, in a process of its own; its log must stay without complaints."""

    def __init__(self, name: str, log: Path, redis_url: str, seen_url: str) -> None:
        self.port = free_port()
        self._log = log
        self._read = 0
        program, *arguments = SERVERS[name]
        bind = ["--port", str(self.port)] if program == "uvicorn" else ["--bind", f"127.0.0.1:{self.port}"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "dev", "-m", program, *arguments, *bind, "--log-level", "warning"],
                cwd=ROOT,
                env={**os.environ, "STREAMING_REDIS": redis_url, "STREAMING_SEEN": seen_url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        eventually(self._answers, f"{name} answers")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def said(self) -> str:
        """What is new in its log."""
        text = self._log.read_text()
        new, self._read = text[self._read :], len(text)
        return new

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Client:
    """A client on a bare socket, with a small buffer: what it does not read stays with the server."""

    def __init__(self, server: Server, path: str, *headers: str, request_id: str = "r-1") -> None:
        self.head = b""
        self._tail = b""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._socket.settimeout(60)
        self._socket.connect(("127.0.0.1", server.port))
        lines = [f"GET {path} HTTP/1.1", "Host: shop", "Connection: close", f"Req-Id: {request_id}", *headers, "", ""]
        self._socket.sendall("\r\n".join(lines).encode())

    def read(self, size: int) -> bytes:
        """At least so many bytes, or all there are."""
        got = b""
        while len(got) < size and (more := self._socket.recv(65536)):
            got += more
        self.head = self.head or got[:1000]
        self._tail = got[-5:] or self._tail
        return got

    def read_all(self) -> int:
        """All that is left; how many bytes. A connection that breaks ends it as well."""
        size = 0
        try:
            while more := self.read(65536):
                size += len(more)
        except ConnectionResetError:
            pass
        self.close()
        return size

    @property
    def saw_the_end(self) -> bool:
        """Whether a body in chunks was ended as it has to be."""
        return self._tail.endswith(b"0\r\n\r\n")

    def close(self) -> None:
        """Go away, as a program does that ends in the middle."""
        self._socket.close()

    def reset(self) -> None:
        """Go away at once, as a machine does that fails."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def the_lock() -> LockInfo | None:
    """The lock as the store has it now."""
    rows = list_all(registry()).rows
    return rows[0].lock if rows else None


def is_free() -> bool:
    return the_lock() is None
