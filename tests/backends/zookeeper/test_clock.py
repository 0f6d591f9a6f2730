"""What a process knows of the leader's time: never ahead of it, and nothing about another leader's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from distlock_web.backends.zookeeper import clock as module
from distlock_web.backends.zookeeper.clock import ServerClock


@dataclass
class Stat:
    mtime: int  #: milliseconds
    epoch: int = 1
    number: int = 77  #: of the write, under this leader

    @property
    def mzxid(self) -> int:
        return self.epoch << 32 | self.number


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Our own clock, in seconds."""
    time = {"now": 100.0}
    monkeypatch.setattr(module, "now", lambda: time["now"])
    return time


def test_a_lease_counts_from_its_nodes_last_change(at: dict[str, float]) -> None:
    clock = ServerClock()
    clock.observe(Stat(5_000))
    at["now"] += 0.5
    assert clock.now_ms() == pytest.approx(5_500)
    assert clock.remaining(Stat(5_000), 2.0) == pytest.approx(1.5, abs=0.002)
    assert clock.remaining(Stat(5_000), 0.4) < 0
    assert clock.remaining(Stat(9_000), 2.0) == 2.0, "of a change that we cannot know yet"


@pytest.mark.parametrize("milliseconds", [300, 55_000])
def test_a_clock_that_was_set_back_is_believed(at: dict[str, float], milliseconds: int) -> None:
    """Else a lease that began after that would be found to be over too early."""
    clock = ServerClock()
    clock.observe(Stat(60_000))
    at["now"] += 0.05
    clock.observe(Stat(60_050 - milliseconds, number=78))
    assert clock.now_ms() <= 60_050 - milliseconds


def test_the_times_of_two_leaders_are_not_compared(at: dict[str, float]) -> None:
    clock = ServerClock()
    clock.observe(Stat(5_000, epoch=1))
    assert clock.is_behind(Stat(900_000, epoch=2))
    clock.observe(Stat(900_000, epoch=2))  # its clock is fifteen minutes ahead
    held = Stat(5_000, epoch=1)
    assert not clock.can_judge(held)
    assert clock.remaining(held, 2.0) == 2.0
    clock.observe(Stat(5_001, epoch=1))  # an answer that was on its way
    assert clock.can_judge(Stat(900_000, epoch=2))


def test_a_lease_is_over_only_by_a_time_that_was_heard_after_its_beginning(at: dict[str, float]) -> None:
    clock = ServerClock()
    clock.observe(Stat(60_000, number=1))
    renewed = Stat(1_000, number=2)  # the clock was set back by a minute
    at["now"] += 0.1
    assert clock.remaining(renewed, 10.0) < 0
    assert not clock.has_ended(renewed, 10.0)
    clock.observe(Stat(1_100, number=3))
    assert clock.remaining(renewed, 10.0) == pytest.approx(9.9, abs=0.002)
    clock.observe(Stat(900, number=2))
    assert clock.remaining(renewed, 10.0) == pytest.approx(9.9, abs=0.002), "late news"
    at["now"] += 9.95
    assert not clock.has_ended(renewed, 10.0), "too long ago"
    clock.observe(Stat(11_050, number=4))
    assert clock.has_ended(renewed, 10.0)


def test_without_a_word_from_the_server_nothing_has_ended(at: dict[str, float]) -> None:
    clock = ServerClock()
    assert not clock.is_fresh(60)
    assert clock.remaining(Stat(5_000), 2.0) == 2.0
