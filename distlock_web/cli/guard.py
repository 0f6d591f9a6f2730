"""The process that ends a command which must not go on, whatever has become of the process that runs it.

Run as a script, with an interpreter that loads nothing but this file. It leads the command's process group, so that
the group's number is nobody else's while it lives, and exists before the command does. On its standard input it is
told until when the lock is surely held, one number a line on the clock of ``now``; a 0 says that it is lost. When that
moment has come, or the input ends (the other process has died somehow, or the command has ended by itself), it ends
the whole group. Its standard output is closed when nothing of the group is left.
"""

import os
import select
import signal
import sys
import time

#: What is passed on to the command's group, and must not end the guard.
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_STOPPING = ("SIGTSTP", "SIGTTIN", "SIGTTOU")
#: Seconds after SIGKILL until a process is given up that the kernel cannot end just now.
_UNKILLABLE = 5.0
#: Seconds that the leader's exit is waited for: somebody may have stopped it.
_MAX_LEAVING = 1.0

READY = b"."
#: Its exit codes: the input has ended; the time had come.
DONE, TIME_IS_OVER = 0, 3


def now() -> float:
    """The clock of ``core.runtime``, which this file cannot import: one that runs on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def end_group(group: int, kill_after: float) -> None:
    """SIGTERM to all processes of this group, and after so many seconds SIGKILL to those that are left."""
    for signum, seconds in ((signal.SIGTERM, kill_after), (signal.SIGKILL, _UNKILLABLE)):
        try:
            os.killpg(group, signum)
            os.killpg(group, signal.SIGCONT)  # one that is stopped would sleep on its signal
        except (ProcessLookupError, PermissionError):  # there is none, or none that we may end: set-uid programs
            return
        until = now() + seconds
        while now() < until:
            try:
                os.killpg(group, 0)
            except (ProcessLookupError, PermissionError):
                return
            time.sleep(0.01)


def _watch() -> float:
    """Wait for the moment to end the group, and return until when the lock is surely held then."""
    deadline, unread = float("inf"), b""
    while (left := deadline - now()) > 0:
        # Never long: the clock that select() counts on stands still while the machine sleeps.
        if not select.select([0], [], [], min(left, 1.0))[0]:
            continue
        received = os.read(0, 65_536)
        if not received:
            break
        *lines, unread = (unread + received).split(b"\n")
        if lines:
            deadline = float(lines[-1])
    return deadline


def _wait_for_end_of(leader: int) -> None:
    """With ``--kill-after 0`` SIGKILL would hit the leader before it has exited with the code that says why."""
    until = now() + _MAX_LEAVING
    while os.getppid() == leader and now() < until:
        time.sleep(0.001)


def main(kill_after: float) -> None:
    for name in (*PASSED_ON, *_STOPPING):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    group = os.getpgrp()
    os.write(1, READY)
    deadline = _watch()
    # What ends the group must not be in it: killpg(group, 0), which asks whether anybody is left, would always find it.
    # We are the group's leader and cannot leave, so a child does it in a session of its own.
    left, leader = deadline - now(), os.getpid()
    if os.fork():
        os._exit(DONE if left > 0 else TIME_IS_OVER)
    os.setsid()
    _wait_for_end_of(leader)
    # The lock is still ours after a kill -9, but not for long: what runs then runs without it.
    end_group(group, min(kill_after, left) if left > 0 else kill_after)


if __name__ == "__main__":
    main(float(sys.argv[1]))
