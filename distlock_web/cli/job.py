"""A command in a process group of its own: its signals, the terminal, and its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from ..core.runtime import now
from . import launch
from .exit_codes import NOT_EXECUTABLE, SIGNALLED, CommandFailed

try:
    import termios
except ImportError:  # pragma: no cover - Windows, which has no process groups either
    termios = None  # type: ignore[assignment]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
PASSED_ON = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
#: Seconds after SIGKILL until a process is given up that the kernel cannot end just now.
_UNKILLABLE = 5.0


class Interrupted(BaseException):
    """A signal that came before there was a command to pass it on to."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Job:
    """One run of a command. While the block runs, signals go to its group; before ``start`` they raise ``Interrupted``.

    Those that are ignored (``nohup``) stay ignored, by the command, too.
    """

    def __init__(self, kill_after: float) -> None:
        self._kill_after = kill_after
        self._group = 0  #: of the command, and its process id
        self._starting = False
        self._interrupted = 0
        self._ending = False  #: the time until SIGKILL runs
        self._kept: deque[int] = deque()  #: signals that are not sent yet: the command has not begun
        self._terminal: tuple[int, list[Any]] | None = None  #: lent to the command: its descriptor and its settings
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in PASSED_ON:
            self._catch(signum, self._received)
        # Where the parent ignores it (some supervisors do), the kernel throws the command's exit status away.
        self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: self.signal(signal.SIGKILL))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # before its handler goes, without which it would end us
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """``CommandFailed`` with a shell's exit code if no process can be started."""
        self._starting = True
        if self._interrupted:  # Python drops what is raised in a garbage collection: the signal was lost
            raise Interrupted(self._interrupted)
        self._catch(signal.SIGTSTP, lambda *_: None)  # stopped, we could not renew, and the command would go on
        # -I and -S: nothing of the environment or of the project is loaded, so it is there within milliseconds.
        script = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
        try:
            self._group = os.posix_spawn(
                sys.executable, [*script, *argv], environment, setpgroup=0, setsigmask=PASSED_ON
            )
        except OSError as error:
            raise CommandFailed(f"{argv[0]}: {error.strerror}.", NOT_EXECUTABLE) from error
        self._send_kept()

    def wait(self, may_go_on: Callable[[], bool] = lambda: True) -> int:
        """The command's exit status as a shell has it, when it has ended.

        ``may_go_on`` is asked after we were stopped together with the command: if not, the command is ended, and not
        continued. As PID 1 or subreaper we inherit orphans: their ends are not the command's.
        """
        while True:
            pid, status = os.waitpid(-1, os.WUNTRACED)
            if pid != self._group:
                continue
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status), may_go_on)
            else:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else SIGNALLED - code

    def signal(self, signum: int) -> None:
        """Send it to the whole group, if need be as soon as there is one. From any thread."""
        self._kept.append(signum)
        self._send_kept()  # looks at the group only now: `start` may have sent what was kept just before the append

    def _send_kept(self) -> None:
        group = self._group
        while group and self._kept:
            try:
                os.killpg(group, self._kept.popleft())
                os.killpg(group, signal.SIGCONT)  # one that is stopped would sleep on its signal
            except IndexError:  # another thread sends it
                return
            except (ProcessLookupError, PermissionError):  # there is none, or none that we may end: set-uid programs
                pass

    def end(self) -> None:
        """SIGTERM now, and SIGKILL to whatever is left when its time since the first call is over. From any thread."""
        self.signal(signal.SIGTERM)
        if not self._kill_after:
            self.signal(signal.SIGKILL)
        elif not self._ending:
            self._ending = True
            signal.setitimer(signal.ITIMER_REAL, self._kill_after)  # no thread, which may fail to start

    def close(self) -> None:
        """End what the command has left behind in its group, and take the terminal back."""
        if self._group:
            self.end()
            until = now() + self._kill_after + _UNKILLABLE
            while self._lives() and now() < until:
                time.sleep(0.01)
            self._group = 0
        if self._terminal is not None:
            fd, settings = self._terminal
            try:
                os.tcsetpgrp(fd, os.getpgrp())
                termios.tcsetattr(fd, termios.TCSADRAIN, settings)  # a command that was killed has not put them back
            except (OSError, termios.error):  # hung up
                pass
            os.close(fd)

    def _lives(self) -> bool:
        try:
            while os.waitpid(-self._group, os.WNOHANG)[0]:  # orphans that are ours now
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(self._group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _stopped(self, signum: int, may_go_on: Callable[[], bool]) -> None:
        if signum == signal.SIGSTOP:  # somebody has sent it, and sends SIGCONT, too
            return
        # Ctrl-Z just goes on: the shell would not know that what we wait for has stopped.
        if signum in (signal.SIGTTIN, signal.SIGTTOU) and not self._lend_terminal():
            os.kill(os.getpid(), signal.SIGSTOP)  # as any job in the background that wants it, until a `fg`
            if not may_go_on():
                self.end()
                return
        self.signal(signal.SIGCONT)

    def _lend_terminal(self) -> bool:
        """Let the command read from the terminal. Not sooner: in ``distlock run … | less`` it belongs to the pager."""
        try:
            fd = os.open("/dev/tty", os.O_RDWR)
        except OSError:  # a cron job, a service: there is none
            return False
        foreground = os.tcgetpgrp(fd)
        if foreground != os.getpgrp():
            os.close(fd)
            return foreground == self._group
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])  # which would stop us when we take it back
        self._terminal = fd, termios.tcgetattr(fd)
        os.tcsetpgrp(fd, self._group)
        return True

    def _catch(self, signum: int, handler: Callable[[int, FrameType | None], object]) -> None:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            self._previous[signum] = signal.signal(signum, handler)

    def _received(self, signum: int, frame: FrameType | None) -> None:
        if not self._starting:
            self._interrupted = signum
            raise Interrupted(signum)
        self.signal(signum)
