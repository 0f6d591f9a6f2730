"""The queue: who sleeps in it is alive, who was taken the lock from is not next, and a crowd is busy."""

from __future__ import annotations

import time
from typing import Any

import pytest

from distlock_web import configure, lock
from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_ident, new_token
from tests.support.callers import Beside, unrelated
from tests.support.stores.sql import end, keep, somebody_elses
from tests.support.waiting import LONG, PATIENCE, eventually

NAME = "disLock:a"


@pytest.fixture
def port(settings: dict[str, Any]) -> Port:
    """Of the default store."""
    configure({"default": {**settings, "OPTIONS": {"timeout": 1.5}}})
    return registry().store("default").backend.sync_port()


def waiters() -> int:
    return drive(registry().store("default").backend.sync_port().inspect())[0].waiters


def until_they_wait(count: int) -> None:
    eventually(lambda: waiters() == count, f"{count} wait")


def test_who_sleeps_for_a_lease_that_has_grown_is_not_taken_for_dead(
    port: Port, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them asked for all, and the others slept on: none of them was handed the lock any more."""
    monkeypatch.setattr("distlock_web.backends.sql.locked_row.GRACE", 400_000)
    holder = unrelated("a", expire=4.0)
    waiting = []
    for number in range(1, 4):
        waiting.append(beside(lambda: unrelated("a", wait=PATIENCE).release()))
        until_they_wait(number)
    holder.extend(LONG)
    time.sleep(5.5)  # the first lease is over, and the moment until which they are not dead
    assert waiters() == 3
    holder.release()
    for one in waiting:
        one.result(PATIENCE / 2)


def of_process(ident: str) -> Claim:
    return Claim(NAME, new_token(ident), LONG)


@pytest.mark.parametrize("end", ["release", "revoke"])
@pytest.mark.parametrize("wait", [0, None])
def test_an_acquisition_that_comes_after_its_end_takes_nothing(port: Port, end: str, wait: int | None) -> None:
    """The lock was held for nobody then, or by one from whom it had just been taken."""
    claim = of_process(new_ident())
    taken = drive(port.acquire(claim, 0))
    assert isinstance(taken, Granted)
    drive(port.release(claim) if end == "release" else port.revoke(NAME, taken.fence or 0))
    assert isinstance(drive(port.acquire(claim, wait)), Busy)
    assert drive(port.inspect()) == []
    with lock("a", wait=0):
        pass


@pytest.mark.slow
def test_who_does_not_get_to_a_lock_that_is_held_hears_that_it_is_busy(
    port: Port, settings: dict[str, Any], beside: Beside
) -> None:
    """In a crowd of processes some waited for the row, or for the file, until their time was over: "unreachable"."""
    holder, queued = unrelated("a"), of_process(new_ident())
    before = drive(port.acquire(queued, None))
    assert isinstance(before, Busy)
    with somebody_elses(settings) as connection:
        keep(connection, NAME)
        waiting = beside(lambda: unrelated("a", wait=PATIENCE).release())
        assert lock("a").try_acquire() is None
        answer = drive(port.acquire(of_process(new_ident()), 0))
        assert isinstance(answer, Busy)
        assert answer.recheck_after <= 0.25
        assert answer.remaining > LONG / 2
        again = drive(port.wait(queued, before._replace(recheck_after=0.001), None))
        assert isinstance(again, Busy)
        assert again.memo == before.memo, "it has kept its place"
        assert not waiting.done()
        end(connection)
    drive(port.cancel(queued))
    holder.release()
    waiting.result(PATIENCE / 2)
