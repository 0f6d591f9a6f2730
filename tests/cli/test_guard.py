"""The guard of ``distlock run``, alone: it ends its group, and its exit code says why."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distlock_web.cli import guard
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
