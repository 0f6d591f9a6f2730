"""A copy of a process is known as one, whatever its pid is."""

from __future__ import annotations

import os

import pytest

from distlock_web import lock
from distlock_web.core.process import Process, check_process
from tests.support.forking import beside_threads, told_by_child


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
