"""A command in a process group of its own, as a shell runs a job: signals, the terminal, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType, TracebackType
from typing import IO, Any, Self, cast

from . import guard
from .exit_codes import INTERNAL, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, CommandFailed

try:
    import termios
except ImportError:  # pragma: no cover - Windows, which has no process groups either
    termios = None  # type: ignore[assignment]

PASSED_ON = tuple(getattr(signal, name) for name in guard.PASSED_ON if hasattr(signal, name))
#: Stops that come from the terminal: it belongs to another group, or somebody has pressed Ctrl-Z.
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


_AS_IT_SHOULD = (guard.DONE, guard.TIME_IS_OVER)


class Interrupted(BaseException):
    """A signal that came before there was a command to pass it on to."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Signals:
    """While the block runs: signals go to the command's group; as long as there is none, they raise ``Interrupted``.

    Those that are ignored (``nohup``) stay ignored, by the command, too.
    """

    def __init__(self) -> None:
        self._deliver: Callable[[int], object] = _interrupt
        self._kept: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in PASSED_ON:
            self._catch(signum)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def starting(self) -> None:
        """From here on signals are kept for the command, which :meth:`started` gives them to."""
        self._deliver = self._kept.append

    def started(self, group: int) -> None:
        self._catch(signal.SIGTSTP)
        self._deliver = partial(_pass_on, group)
        for signum in self._kept:
            _pass_on(group, signum)

    def ended(self) -> None:
        """From here on there is nobody to pass them on to, and what is left to do takes no time."""
        self._deliver = _drop

    def _catch(self, signum: int) -> None:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            self._previous[signum] = signal.signal(signum, self._received)

    def _received(self, signum: int, frame: FrameType | None) -> None:
        self._deliver(signum)


def _interrupt(signum: int) -> None:
    raise Interrupted(signum)


def _pass_on(group: int, signum: int) -> None:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # it has just ended; or it has become another user's
        pass


def _drop(signum: int) -> None:
    """Nobody is there any more."""


class Terminal:
    """The controlling terminal, lent to the command's group when that wants to read from it.

    Not sooner: in ``distlock run … | less`` it belongs to the pager.
    """

    def __init__(self) -> None:
        self._lent = False
        self._modes: Any = None
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR)
        except OSError:  # a cron job, a service: there is none
            self._fd = -1

    @property
    def exists(self) -> bool:
        return self._fd >= 0

    def ours(self) -> bool:
        """Whether we are in the foreground."""
        try:
            return self.exists and os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # it was hung up
            return False

    def lend(self, group: int) -> None:
        if not self._lent:
            self._modes = termios.tcgetattr(self._fd)
        self._give(group)
        self._lent = True

    def suspend(self, group: int) -> None:
        """Stop ourselves, as the command has stopped; when somebody continues us, let the command go on."""
        lent, self._lent = self._lent, False
        if lent:
            self._give(os.getpgrp())
        os.kill(os.getpid(), signal.SIGSTOP)
        if lent and self.ours():
            self.lend(group)

    def close(self, restore: bool) -> None:
        """Take it back. ``restore``: with the settings that it had, for the command could not put them back."""
        if self._lent:
            self._give(os.getpgrp())
            if restore:
                self._quietly(lambda: termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes))
        if self.exists:
            os.close(self._fd)
            self._fd = -1

    def _give(self, group: int) -> None:
        self._quietly(lambda: os.tcsetpgrp(self._fd, group))

    @staticmethod
    def _quietly(change: Callable[[], object]) -> None:
        """Change the terminal from the background, which else stops us; one that has gone needs no change."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            change()
        except (OSError, termios.error):
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Job:
    """One run of a command. Its group is led by the guard, which ends it when we cannot."""

    def __init__(self, kill_after: float) -> None:
        self._kill_after = kill_after
        # -I and -S: nothing of the environment or of the project is loaded, so it is there within milliseconds.
        try:
            self._guard = subprocess.Popen(  # noqa: S603 - nothing from outside is in it
                [sys.executable, "-I", "-S", guard.__file__, str(kill_after)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
        except OSError as error:  # no more processes, or no more memory
            raise CommandFailed(f"The guard of the command did not start: {error.strerror}.", INTERNAL) from error
        self._to_guard, self._from_guard = cast("IO[bytes]", self._guard.stdin), cast("IO[bytes]", self._guard.stdout)
        os.set_blocking(self._to_guard.fileno(), False)
        self._told = threading.Lock()
        self._in_place_of_guard: threading.Thread | None = None
        self.group = self._guard.pid

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises ``CommandFailed`` with a shell's exit code if the command cannot be started."""
        if self._from_guard.read(1) != guard.READY:
            raise CommandFailed("The guard of the command did not start.", INTERNAL)
        try:
            self._pid = os.posix_spawnp(
                argv[0], list(argv), dict(environment), setpgroup=self.group,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores, and a program expects
            )  # fmt: skip
        except (FileNotFoundError, ValueError) as error:  # an empty word is no program's name
            raise CommandFailed(f"{argv[0]}: not found.", NOT_FOUND) from error
        except OSError as error:
            raise CommandFailed(f"{argv[0]}: {error.strerror}.", NOT_EXECUTABLE) from error

    def wait(self) -> int:
        """The command's exit code as a shell has it, when it has ended."""
        terminal = Terminal()
        killed = True
        try:
            while True:
                pid, status = os.waitpid(-self.group, os.WUNTRACED)
                if os.WIFSTOPPED(status):
                    if pid == self._pid:
                        self._stopped(terminal, os.WSTOPSIG(status))
                elif pid == self.group:
                    self._guard_ended(status)
                else:
                    killed = os.WIFSIGNALED(status)
                    return SIGNALLED + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        finally:
            terminal.close(restore=killed)

    def held_until(self, moment: float) -> None:
        """Let the command run until then, on the clock of ``now``. From any thread."""
        self._tell(f"{moment!r}\n")

    def end(self) -> None:
        """End the command: SIGTERM now, SIGKILL later. From any thread, and at once."""
        self._tell("0\n")

    @property
    def was_ended(self) -> bool:
        """Whether the guard has ended the command, for its time was over. Known when it is closed."""
        return self._guard.returncode == guard.TIME_IS_OVER

    def close(self) -> None:
        """End what is left of the group, and wait for its end."""
        with self._told:
            self._to_guard.close()
        if self._guard.wait() in _AS_IT_SHOULD:
            self._from_guard.read()  # it has left a child that does it, and closes this pipe when it is done
        elif self._in_place_of_guard is not None:
            self._in_place_of_guard.join()
        else:
            self._end_group()
        self._from_guard.close()

    def _tell(self, text: str) -> None:
        with self._told:
            if self._to_guard.closed:
                return
            try:
                os.write(self._to_guard.fileno(), text.encode("ascii"))
            except (BlockingIOError, BrokenPipeError):  # it is stopped, and reads the last word later; or it has gone
                pass

    def _guard_ended(self, status: int) -> None:
        """Its work is done; or somebody has killed it, and nobody would end the command after a kill -9 of ours."""
        self._guard.returncode = os.waitstatus_to_exitcode(status)
        if self._guard.returncode not in _AS_IT_SHOULD:
            # Aside: the command is in the group until it is waited for, which is our part.
            self._in_place_of_guard = threading.Thread(target=self._end_group, name="distlock-run-end", daemon=True)
            self._in_place_of_guard.start()

    def _end_group(self) -> None:
        guard.end_group(self.group, self._kill_after)

    def _stopped(self, terminal: Terminal, signum: int) -> None:
        if signum in _WANTS_TERMINAL and terminal.ours():
            terminal.lend(self.group)
            if terminal.ours():  # it cannot be lent: continued, the command would ask for it again, without an end
                return
        elif terminal.exists and signum != signal.SIGSTOP:
            terminal.suspend(self.group)
        else:  # somebody has sent it a SIGSTOP, and will send the SIGCONT, too
            return
        os.killpg(self.group, signal.SIGCONT)
