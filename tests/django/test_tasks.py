"""Django's own tasks, since 6.0."""

from __future__ import annotations

import pytest

from distlock_web import ConfigurationError, distributed_lockable

tasks = pytest.importorskip("django.tasks")


def test_above_a_task_the_lock_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"below @.*, which made the task"):
        distributed_lockable(key="report:{month}")(tasks.task(report))


def test_below_it_every_run_is_under_the_lock(memory: None) -> None:
    task = tasks.task(distributed_lockable(key="report:{month}")(report))
    assert task.call("May") == "May"


def report(month: str) -> str:
    return month
