"""The command line as a process of its own, beside a terminal of its own where one is needed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .waiting import PATIENCE, eventually

COMMAND = (sys.executable, "-m", "distlock_web")


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "DISTLOCK_URL": url, "PYTHONWARNINGS": "error"}


def distlock(url: str, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end, without a terminal."""
    more = {"start_new_session": True, **more}
    return subprocess.run(
        [*COMMAND, *args], env=environment(url), capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )


@contextmanager
def started(url: str, *args: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Run it beside the test, without a terminal."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **more}
    with subprocess.Popen([*COMMAND, *args], env=environment(url), **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def pid_in(path: Path) -> int:
    """The process id that a command writes to this file, with a line's end."""
    eventually(lambda: text_of(path).endswith("\n"), f"{path.name} is written")
    return int(path.read_text())


class OnTerminal:
    """A program that has a terminal of its own: what it shows, and keys to press."""

    def __init__(self, url: str, *command: str, **variables: str) -> None:
        self._keyboard, self._other = os.openpty()  # both stay open: what is shown at the end can be read then
        termios.tcsetwinsize(self._keyboard, (30, 160))
        self.shown = ""
        # The first terminal that the leader of a session opens is its own.
        opening = 'exec "$@" <"$TERMINAL" >"$TERMINAL" 2>&1'
        self._process = subprocess.Popen(
            ["sh", "-c", opening, "sh", *command],
            env={**environment(url), "TERM": "xterm", "TERMINAL": os.ttyname(self._other), **variables},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._keyboard)
        os.close(self._other)

    def press(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def shows(self, text: str) -> str:
        """Wait until this is shown; everything until then, and the next search begins behind it."""
        until = time.monotonic() + PATIENCE
        while text not in self.shown:
            if time.monotonic() > until or not self._read():
                raise AssertionError(f"{text!r} is not shown, but {self.shown!r}")
        before, found, self.shown = self.shown.partition(text)
        return before + found

    def is_at(self, prompt: str) -> None:
        """Wait for a prompt that hears us: a shell drops what is pressed while it takes its terminal back."""
        self.shows(prompt)
        until = time.monotonic() + PATIENCE
        while prompt not in self.shown and time.monotonic() < until:
            self.press("\n")
            self._read()
        self.shows(prompt)

    def ends(self) -> int:
        """Its exit code. What it shows until then is read."""
        until = time.monotonic() + PATIENCE
        while self._read() and time.monotonic() < until:
            pass
        return self._process.wait(1)

    def _read(self) -> bool:
        """Whether more may come."""
        if select.select([self._keyboard], [], [], 0.2)[0]:
            self.shown += os.read(self._keyboard, 65_536).decode("utf-8", "replace")
            return True
        return self._process.poll() is None
