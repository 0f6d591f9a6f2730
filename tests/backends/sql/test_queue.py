"""The queue: who sleeps in it is alive, however long the lease becomes that it waits for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from distlock_web import configure
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive
from tests.support.callers import Beside, unrelated
from tests.support.waiting import LONG, PATIENCE, eventually


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(f"{request.param}_settings")


def until_they_wait(count: int) -> None:
    eventually(lambda: waiters() == count, f"{count} wait")


def waiters() -> int:
    return drive(registry().store("default").backend.sync_port().inspect())[0].waiters


def test_who_sleeps_for_a_lease_that_has_grown_is_not_taken_for_dead(
    settings: dict[str, Any], beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them asked for all, and the others slept on: none of them was handed the lock any more."""
    monkeypatch.setattr("distlock_web.backends.sql.lease.GRACE", 400_000)
    configure({"default": settings})
    holder = unrelated("a", expire=1.0)
    waiting = []
    for number in range(1, 4):
        waiting.append(beside(lambda: unrelated("a", wait=PATIENCE).release()))
        until_they_wait(number)
    holder.extend(LONG)
    time.sleep(2.5)  # the first lease is over, and the moment until which they are not dead
    assert waiters() == 3
    holder.release()
    for one in waiting:
        one.result(PATIENCE / 2)
