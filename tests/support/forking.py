"""Forked children: by Python, as gunicorn --preload and Celery do it, and in C, as uWSGI does it."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeAlias

import pytest

from .waiting import PATIENCE, eventually

Fork: TypeAlias = Callable[[], int]


def fork_in_c() -> int:
    """A fork of which Python is not told: none of its hooks run.

    Not before our threads have ended: if one asked for the GIL just then, Python itself would wait for it in the child.
    """
    eventually(lambda: not any(thread.name.startswith("distlock-") for thread in threading.enumerate()), "they end")
    return int(ctypes.PyDLL(None).fork())


both_forks = pytest.mark.parametrize("fork", [os.fork, fork_in_c], ids=["python", "c"])
#: Python 3.12 warns of a fork beside other threads: that is what these tests are about.
beside_threads = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def in_child(work: Callable[[], object], fork: Fork = os.fork) -> None:
    """Run this in a forked child; fails if it fails there, or takes longer than a deadlock would."""
    pid = begin_child(work, fork)
    status = end_of(pid)
    assert status == 0, f"the child ended with {status}"


def told_by_child(work: Callable[[], str], fork: Fork = os.fork) -> str:
    """The same; what it returns."""
    read, write = os.pipe()
    in_child(lambda: os.write(write, work().encode()), fork)
    os.close(write)
    with os.fdopen(read) as told:
        return told.read()


def begin_child(work: Callable[[], object], fork: Fork = os.fork) -> int:
    """Its pid; its exit status is 0 if the work does not fail."""
    pid = fork()
    if pid == 0:
        os._exit(child_status(work))
    return pid


def child_status(work: Callable[[], object]) -> int:
    """Do this in a child; the status for its end."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end_of(pid: int) -> int:
    """Its exit status, when it has ended. One that does not is killed."""
    until = time.monotonic() + PATIENCE
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
            break
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])
