"""What happened in this process in the last hour, minute by minute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from distlock_web import BackendUnavailable, LeaseLost, LockBusy, configure, events, lock
from distlock_web.locks import recent_counts
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import unrelated
from tests.support.revoking import revoke_the_lock


class Clocks:
    """Both clocks: ours, which never jumps, and the wall's."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def time(self) -> float:
        return 1_800_000_030.0 + self.elapsed

    def now(self) -> float:
        return 5000.0 + self.elapsed


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    clocks = Clocks()
    monkeypatch.setattr(recent_counts, "time", clocks)
    recent_counts._forked()
    yield clocks
    recent_counts._forked()


def counts(minute: events.Minute) -> tuple[int, ...]:
    return minute.acquired, minute.busy, minute.lost, minute.errors


def total() -> list[int]:
    return [sum(column) for column in zip(*map(counts, events.recent()), strict=True)]


def test_all_that_happens_is_counted_also_while_nobody_listens(store_settings: dict[str, Any]) -> None:
    injector = FaultInjector(configure({"default": store_settings}).store("default"))
    recent_counts._forked()
    with lock("a"), lock("a"):  # entered again: not taken again
        pass
    with pytest.raises(LeaseLost), lock("a"):
        revoke_the_lock()
    held = unrelated("a")
    with pytest.raises(LockBusy):
        lock("a").acquire()
    held.release()
    injector.cut()
    with pytest.raises(BackendUnavailable):
        lock("a").acquire()
    assert events.listeners == ()
    assert total() == [3, 1, 1, 1]


def test_a_minute_each(clocks: Clocks) -> None:
    recent_counts.count_acquired(clocks.now())
    clocks.elapsed += 29
    recent_counts.count_acquired(clocks.now())
    clocks.elapsed += 1  # the minute is over
    recent_counts.count("busy", clocks.now())
    clocks.elapsed += 120
    recent_counts.count("lost", clocks.now())
    recent_counts.count("errors", clocks.now())
    minutes = events.recent(5)
    assert [minute.since for minute in minutes] == [1_799_999_940.0 + 60 * number for number in range(5)]
    assert [counts(minute) for minute in minutes] == [(0,) * 4, (2, 0, 0, 0), (0, 1, 0, 0), (0,) * 4, (0, 0, 1, 1)]


def test_an_hour_is_kept_and_no_more(clocks: Clocks) -> None:
    for _ in range(200):
        recent_counts.count("busy", clocks.now())
        clocks.elapsed += 60
    assert len(recent_counts._minutes) == 60
    minutes = events.recent(1000)
    assert len(minutes) == 60
    assert [minute.busy for minute in minutes] == [1] * 59 + [0]


def test_two_threads_that_begin_a_minute_are_added_up(clocks: Clocks) -> None:
    recent_counts._begin(clocks.now()).busy = 2
    recent_counts._begin(clocks.now()).busy = 3
    assert events.recent(1)[0].busy == 5


def test_what_is_given_is_a_copy(clocks: Clocks) -> None:
    recent_counts.count("busy", clocks.now())
    events.recent()[-1].busy = 100
    assert events.recent()[-1].busy == 1


def test_a_forked_child_counts_anew(memory_store: None) -> None:
    with lock("a"):
        pass
    pid = os.fork()
    if pid == 0:
        status = 1
        with suppress(BaseException):
            status = 0 if total() == [0, 0, 0, 0] else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
