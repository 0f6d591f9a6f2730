"""``distlock run``: a command that runs while a lock is held, and not longer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

from ..core.errors import ConfigurationError, DistLockError, KeyReused, LeaseLost, LockBusy
from ..core.registry import registry
from ..core.runtime import now
from ..locks.lease import Lease, current_lease
from ..locks.lock import lock
from ..locks.once import once
from ..locks.options import LockOptions
from ..locks.request_context import request_scope
from ..ops.readable import printable
from . import launch
from .exit_codes import LOST, NOT_EXECUTABLE, SIGNALLED, UNAVAILABLE, USAGE, CommandFailed
from .output import Output, say
from .parser import Context

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
PASSED_ON = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_OF_KEYS = (signal.SIGINT, getattr(signal, "SIGQUIT", None))  # Ctrl-C and Ctrl-\
#: Seconds after SIGKILL until a process is given up that the kernel cannot end just now.
_UNKILLABLE = 5.0


class Interrupted(BaseException):
    """A signal that came before there was a command to pass it on to."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def run(options: Namespace, context: Context) -> int:
    if not options.argv:
        raise CommandFailed("run: the command is missing: `distlock run --key KEY -- COMMAND`", USAGE)
    if not hasattr(os, "posix_spawn"):
        raise CommandFailed("run: this system has no process groups; run works on Linux, macOS and the BSDs.", USAGE)
    running = CommandRun(options, context.errors)
    words = f"run {os.path.basename(options.argv[0])}"  # without arguments: they may be secret
    try:
        with request_scope(path=words), running.signals():
            return running.run()
    except Interrupted as interrupted:
        return SIGNALLED + interrupted.signum
    except LockBusy as error:
        raise CommandFailed(f"{error} The command was not run.", options.busy_exit_code) from error
    except KeyReused as error:
        raise CommandFailed(
            f"Another command was done under the key {options.key!r}, and this one was not run. Give it a key of its "
            f"own, or let the key run again: `distlock once forget`.",
            USAGE,
        ) from error
    except ConfigurationError:
        raise
    except LeaseLost as error:  # of --once: the command has ended, and what was done is not recorded
        raise CommandFailed(str(error), LOST) from error
    except DistLockError as error:  # its usual status may be a command's own
        known = "" if running.has_lock else f"The lock {options.key!r} was not taken, and the command was not run. "
        raise CommandFailed(f"{known}{error}", UNAVAILABLE) from error


class CommandRun:
    """A lock, and a command: in a process group of its own, which can be ended as a whole.

    Who has a terminal shares it with the command, as flock(1) does: both are in one group, for a terminal is one
    group's at a time. Only the command itself is ended then.
    """

    def __init__(self, options: Namespace, errors: Output) -> None:
        self._options = options
        self._errors = errors
        self._shares = _has_terminal()
        self._pid = 0  #: of the command, and of its group; 0: it does not run
        self.has_lock = False  #: it was taken, and the command is started
        self._early: list[int] = []  #: signals that came before the command was there
        self._lost = False
        self._told = threading.Event()  #: of the loss

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Ours go to the command; before it is started they raise ``Interrupted``. Those that are ignored stay so."""
        heard = [signum for signum in PASSED_ON if signal.getsignal(signum) is not signal.SIG_IGN]
        handlers: dict[int, Any] = dict.fromkeys(heard, self._received)
        handlers[signal.SIGALRM] = lambda *_: self._send(signal.SIGKILL)
        # Where the parent ignores it (some supervisors do), the kernel throws the command's exit status away.
        handlers[signal.SIGCHLD] = signal.SIG_DFL
        previous = {signum: signal.signal(signum, each) for signum, each in handlers.items()}
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # before its handler goes, without which it would end us
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def run(self) -> int:
        """The exit status. A person at a terminal is told for whom we wait."""
        backend = registry().store(self._options.store or "default").backend
        if backend.makes_tables:
            backend.prepare()  # Django's tables come by migrate, which may be the command
        if self._options.wait != 0 and self._errors.terminal:
            try:
                return self._under_lock(0.0)
            except LockBusy as error:
                self._say(f"{error} Waiting for it.")
        return self._under_lock(self._options.wait)

    def _under_lock(self, wait: float | None) -> int:
        code = self._locked(wait)  # a loss may be noticed at its end
        if self._lost:
            self._told.wait(1.0)  # a thread of its own says so
        return LOST if self._lost and self._options.on_lost == "kill" else code

    def _locked(self, wait: float | None) -> int:
        given = self._options
        options: LockOptions = {
            "expire": given.expire, "wait": wait, "renew": True, "prefix": given.prefix,
            "store": given.store or "default", "on_lost": self._when_lost,
        }  # fmt: skip
        if given.once is None:
            with lock(given.key, **options) as lease:  # a release that fails is logged
                return self._command(lease)
        policies = {"on_busy": "raise", "on_backend_error": "raise", "success": lambda code: code == 0}
        kept = once(key=lambda: given.key, keep=given.once, **options, **policies)  # type: ignore[misc,arg-type]

        def command() -> int:
            return self._command(cast(Lease, current_lease()))

        # A record is its function's, and so this command's: its words may be secret, and so are not in it.
        digest = hashlib.sha256(json.dumps(given.argv).encode("utf-8", "surrogateescape")).hexdigest()
        command.__qualname__ = f"command:{digest[:16]}"
        code: int | None = kept(command)()
        if code is None:
            self._say(f"{given.key} was done, and is not run again for its time (`distlock once list`).")
        return code or 0

    def _command(self, lease: Lease) -> int:
        """Its exit status."""
        self._start(lease)
        try:
            return self._wait()
        finally:
            self._close()

    def _when_lost(self, lease: Lease) -> None:
        """From any thread; also before the command is started, or when it has ended."""
        self._lost = True
        ending = self._options.on_lost == "kill"
        if ending:
            self._end()
        self._say(f"lost the lock {lease.name} ({lease.reason}); the command {'is ended' if ending else 'goes on'}.")
        self._told.set()

    def _start(self, lease: Lease) -> None:
        self.has_lock = True
        if self._early:  # Python drops what is raised in a garbage collection: the signal was lost
            raise Interrupted(self._early[0])
        argv, key = self._options.argv, self._options.key
        # -I and -S: nothing of the environment or of the project is loaded, so it is there within milliseconds.
        script = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
        fence = "" if lease.fence is None else str(lease.fence)  # and not that of an outer `distlock run`
        environment = {**os.environ, "DISTLOCK_KEY": key, "DISTLOCK_NAME": lease.name, "DISTLOCK_FENCE": fence}
        try:
            group: dict[str, Any] = {} if self._shares else {"setpgroup": 0}  # 0: its own
            self._pid = os.posix_spawn(sys.executable, [*script, *argv], environment, **group, setsigmask=PASSED_ON)
        except OSError as error:
            raise CommandFailed(f"{argv[0]}: {error.strerror}.", NOT_EXECUTABLE) from error
        for signum in self._early:
            self._send(signum)
        if self._lost and self._options.on_lost == "kill":
            self._end()

    def _wait(self) -> int:
        """The command's exit status as a shell has it."""
        # As PID 1 we inherit orphans, which nobody else reaps. Else another child is that of who has started it.
        awaited = -1 if _is_first_process() else self._pid
        while True:
            pid, status = os.waitpid(awaited, 0)
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else SIGNALLED - code

    def _end(self) -> None:
        """SIGTERM now, and SIGKILL to whatever is left when its time since the first call is over."""
        self._send(signal.SIGTERM)
        if not self._options.kill_after:
            self._send(signal.SIGKILL)
        elif not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, self._options.kill_after)  # no thread, which may fail to start

    def _close(self) -> None:
        """End what the command has left behind in its group."""
        if not self._shares:
            self._end()
            until, pause = now() + self._options.kill_after + _UNKILLABLE, 0.01
            while self._lives() and now() < until:
                time.sleep(pause)
                pause = min(2 * pause, 0.16)
        self._pid = 0

    def _lives(self) -> bool:
        try:
            while os.waitpid(-self._pid, os.WNOHANG)[0]:  # orphans that are ours now
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(self._pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        # Twice: one that forks a child and ends while /proc is read is seen as ended, and its child not at all.
        return not (_all_zombies(self._pid) and _all_zombies(self._pid))

    def _send(self, signum: int) -> None:
        pid, send = self._pid, os.kill if self._shares else os.killpg
        try:
            if pid:
                send(pid, signum)
                send(pid, signal.SIGCONT)  # one that is stopped would sleep on its signal
        except (ProcessLookupError, PermissionError):  # there is none, or none that we may end: set-uid programs
            pass

    def _received(self, signum: int, frame: FrameType | None) -> None:
        if self._pid:
            # The keys of a terminal have sent it to the command as well. PID 1 may have it from a container that ends.
            if _is_first_process() or not (self._shares and signum in _OF_KEYS):
                self._send(signum)
            return
        self._early.append(signum)
        if not self.has_lock:
            raise Interrupted(signum)

    def _say(self, text: str) -> None:
        say(self._errors.stream, f"distlock: {printable(text)}\n")


def _is_first_process() -> bool:
    """Whether we are PID 1: a container's command."""
    return os.getpid() == 1


def _all_zombies(group: int) -> bool:
    """Whether its processes have ended, and are only not reaped: in a container PID 1 may be a program that does not.

    As far as Linux's /proc shows them: False where it does not.
    """
    found = False
    for fields in _processes():
        if fields[2] == str(group):
            found = True
            if fields[0] not in "ZX" or int(fields[17]) > 1:
                return False  # the rest need not be read
    return found


def _processes() -> Iterator[list[str]]:
    """Of each: state, parent, group, ... and the number of threads as the 18th, for the first may have ended alone."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just gone
            yield file.read_text("utf-8", "replace").rpartition(")")[2].split()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))  # our input may be a file or a pipe
    except OSError:
        return False
    return True
