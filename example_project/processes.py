"""Starting the demo's servers, and stopping every one of them, whatever happens in between."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_START = 30.0  #: seconds until a server has to answer
_STOP = 5.0  #: seconds that a server has to end before it is killed


class ServerFailed(Exception):
    """A server did not start or has ended; the message says which, and its last words."""


class Stopped(BaseException):
    """The demo is to end. Like KeyboardInterrupt no Exception, so that nothing on the way swallows it."""


def stop_when_told() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise ``Stopped`` in the main thread, once."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C must not disturb the stopping
    raise Stopped


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put a signal off to the end of the block: a process that is just being started would be left behind."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        _stop(came[0], None)


def listen(port: int) -> socket.socket:
    """A socket that listens on the loopback; port 0: any that is free. Raises ``ServerFailed``."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ServerFailed(f"Port {port} of 127.0.0.1 cannot be used: {error.strerror}. Name another.") from error


class Gunicorn:
    """An application under gunicorn, in several processes with several threads each."""

    def __init__(self, application: str, sock: socket.socket, log: Path, environment: Mapping[str, str]) -> None:
        self.application = application
        self.address: tuple[str, int] = sock.getsockname()
        self.log = log
        # The socket is handed down: no port that was free a moment ago can be taken by another program.
        command = [sys.executable, "-m", "gunicorn", application, "--bind", f"fd://{sock.fileno()}"]
        command += ["--chdir", str(ROOT)]
        command += ["--workers", "2", "--threads", "32", "--graceful-timeout", "2", "--log-level", "warning"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[sock.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal is meant for the demo, which stops this in its turn
            )
        sock.close()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def wait_until_ready(self) -> None:
        """Return when the application answers. Raises ``ServerFailed``."""
        until = time.monotonic() + _START
        while time.monotonic() < until:
            self.check()
            if self._answers():
                return
            time.sleep(0.05)
        raise self._failed("does not answer")

    def check(self) -> None:
        """Raise ``ServerFailed`` if the server has ended."""
        if self.process.poll() is not None:
            raise self._failed("has ended")

    def _answers(self) -> bool:
        connection = HTTPConnection(*self.address, timeout=_START)
        try:
            connection.request("GET", "/")
            status = connection.getresponse().status
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        if status >= 500:
            raise self._failed(f"answers {status}")
        return True

    def _failed(self, how: str) -> ServerFailed:
        last_words = self.log.read_text(errors="replace")[-2000:]
        return ServerFailed(f"{self.application} under gunicorn {how}. Its last words:\n{last_words}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # the workers too: it leads a session of its own
            self.process.wait()
