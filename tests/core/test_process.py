"""A copy of a process is known as one, whatever its pid is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distlock_web import lock
from distlock_web.core.process import Process, check_process
from tests.support.forking import beside_threads, told_by_child
from tests.support.source import PROJECT
from tests.support.waiting import PATIENCE


@beside_threads
@pytest.mark.usefixtures("memory_store")
def test_a_child_with_the_pid_of_its_parent_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pid namespace of its own it is number 1, as its parent may be: it went on as the holder of its locks."""
    mine, generation = os.getpid(), Process.generation
    monkeypatch.setattr(os, "getpid", lambda: mine)

    def told() -> str:
        check_process()
        return f"{lease.state} {lease.reason} {Process.generation - generation} {Process.pid == mine}"

    with lock("a") as lease:
        assert told_by_child(told) == "lost forked 1 True"
        assert told() == "held None 0 True"


#: A hook that Python calls in each child before ours, for it was registered first. It takes a lock there.
EARLY = """
import os

os.register_at_fork(after_in_child=lambda: taken.append(lock("early").acquire()))

from distlock_web import configure, lock
from distlock_web.core.process import Process, after_fork

taken, forgotten = [], []
after_fork(lambda: forgotten.append(os.getpid()))
configure({"default": {"BACKEND": "memory"}})
lease = lock("a").acquire()
for _ in range(2):
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert Process.generation == len(forgotten)
        break
    assert (lease.state, lease.reason) == ("lost", "forked")
    assert [each.state for each in taken] == ["lost"] * (len(taken) - 1) + ["held"], taken
    assert Process.generation == len(forgotten) == len(taken), forgotten
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no copies")
def test_what_is_told_of_a_copy_before_python_tells_us_is_told_once() -> None:
    """What was taken in between was lost again, as the parent's, and a leader began a second campaign."""
    subprocess.run([sys.executable, "-c", EARLY], cwd=PROJECT, timeout=PATIENCE, check=True)
