"""The guard of ``distlock run``, alone: it ends its group, and its exit code says why."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from distlock_web.cli import guard, job
from distlock_web.cli.exit_codes import CommandFailed
from tests.support.waiting import PATIENCE

#: The guard's own end is held up: what it leaves behind has begun its work by then.
SLOW_TO_LEAVE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import guard
leave = os._exit
os._exit = lambda code: (time.sleep(0.3), leave(code))
guard.main(0.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("told", "code"), [(b"", guard.DONE), (b"0\n", guard.TIME_IS_OVER)])
def test_without_a_pause_before_the_kill_the_guard_still_says_why_it_ended(told: bytes, code: int) -> None:
    """Killed by what it had left behind, it could not say that the lock was lost: the exit status was the command's."""
    command = [sys.executable, "-I", "-S", "-c", SLOW_TO_LEAVE, os.path.dirname(guard.__file__)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(told)
        process.stdin.close()
        assert process.wait(PATIENCE) == code
        assert process.stdout.read() == guard.READY  # and to its end: what it has left behind is done


def test_one_that_cannot_be_started_is_said_with_an_exit_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cron saw a traceback and 1, which may be the command's own."""

    def refuse(*args: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(CommandFailed, match="guard of the command did not start: Resource") as caught:
        job.Job(1.0)
    assert caught.value.exit_code == 70
