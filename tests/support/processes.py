"""A process that can be killed, stopped and continued, and that reports what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from distlock_web.core.runtime import now

from .history import Event, History
from .waiting import PATIENCE


class Worker:
    """A process of its own that tells its events on standard output, one JSON object a line (see ``Recorder``)."""

    def __init__(self, actor: str, command: Sequence[str], history: History, env: dict[str, str] | None = None) -> None:
        self.actor = actor
        self._history = history
        self._said: list[Event] = []
        self._silent = False
        self._still_since: float | None = None
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        self._reader = threading.Thread(target=self._read, name=f"fault-reader-{actor}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def times(self, kind: str) -> int:
        """How often it has said this until now."""
        with self._changed:
            return sum(event.kind == kind for event in self._said)

    def saw(self, kind: str, times: int = 1) -> Event:
        """Wait until the worker has said this so many times; the last of them. ``TimeoutError`` if it never does."""
        until = time.monotonic() + PATIENCE
        with self._changed:
            while len(found := [event for event in self._said if event.kind == kind]) < times:
                if self._silent:
                    raise TimeoutError(f"{self.actor} ended without saying {kind!r}; it said {self._said[-5:]}")
                if not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise TimeoutError(f"{self.actor} did not say {kind!r}; it said {self._said[-5:]}")
        return found[times - 1]

    def go(self) -> None:
        """Let a worker go on that waits for a word on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no handler runs, no ``finally``, no release."""
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        # One that stood still has done nothing since.
        self._history.add(Event(self.actor, "killed", self._still_since or now()))

    def stop(self) -> None:
        """SIGSTOP, and return when the process really stands still: as in a garbage collection, or a frozen machine."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        self._still_since = now()

    def resume(self) -> None:
        self._still_since = None
        os.kill(self.pid, signal.SIGCONT)

    def join(self, patience: float = PATIENCE) -> int:
        """Wait for its end; the exit status."""
        status = self._process.wait(patience)
        self._reader.join(PATIENCE)
        return status

    def close(self) -> None:
        """End it, however it stands; harmless if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = Event(**json.loads(line))
            self._history.add(event)
            with self._changed:
                self._said.append(event)
                self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()
