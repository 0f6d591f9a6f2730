"""Who of the waiters of a process asks when the lease ends that they wait for."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, cast

import pytest

from distlock_web.core import lease_ends
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.blocking_port import BlockingPort, BlockingVerbs, Executors, Wakeups
from distlock_web.core.lease_ends import LEAD, MAX_NAMES, MAX_SILENT, PLACE, TICK, LeaseEnds, stagger
from distlock_web.core.runtime import THREADS, drive, now


class Clock:
    def __init__(self) -> None:
        self.moment = 100.0

    def __call__(self) -> float:
        return self.moment


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lease_ends, "now", made)
    return made


def claim(token: str, expire: float = 10.0) -> Claim:
    return Claim("stock", token, expire)


FIRST, SECOND = claim("first"), claim("second")


def busy(
    recheck_after: float, remaining: float, held_for: float | None, position: int = 0, holder: str = "its holder"
) -> Busy:
    return Busy(recheck_after, remaining, position, holder, held_for)


def test_the_first_asks_and_the_others_sleep_on(clock: Clock) -> None:
    ends = LeaseEnds()
    ends.told(FIRST, 100.0, busy(1.0, 1.0, 9.0, 7))
    ends.told(SECOND, 100.0, busy(1.001, 1.0, 9.0, 8))
    clock.moment = 101.0
    assert ends.later(FIRST, 100.0) is None, "nobody has asked since"
    ends.told(FIRST, 101.0, busy(2.0, 2.0, 10.0, 7))
    clock.moment = 101.5
    slept_on = ends.later(SECOND, 100.0)
    assert slept_on is not None
    assert slept_on.remaining == pytest.approx(1.5)
    assert 1.5 < slept_on.recheck_after <= 1.5 + 2 * LEAD
    assert (slept_on.position, slept_on.holder) == (8, "its holder")


def test_who_comes_last_and_asks_does_not_take_the_first_ones_turn(clock: Clock) -> None:
    ends = LeaseEnds()
    ends.told(FIRST, 100.0, busy(1.0, 1.0, 9.0))
    clock.moment = 100.9
    ends.told(SECOND, 100.9, busy(2.2, 2.0, 9.9))  # two hundred stand in front of it
    clock.moment = 101.0
    slept_on = ends.later(FIRST, 100.0)
    assert slept_on is not None
    assert slept_on.recheck_after == pytest.approx(slept_on.remaining), "it asks when the lease ends, as before"


def test_nobody_sleeps_past_a_lease_of_its_own(clock: Clock) -> None:
    """What happens to the holder meanwhile costs no more, however long its lease is."""
    short = claim("short", 1.0)
    ends = LeaseEnds()
    ends.told(short, 100.0, busy(1.0, 60.0, 9.0))
    clock.moment = 100.5
    ends.told(FIRST, 100.5, busy(10.0, 59.5, 9.5))
    clock.moment = 101.0
    slept_on = ends.later(short, 100.0)
    assert slept_on is not None
    assert slept_on.recheck_after == pytest.approx(0.5)
    clock.moment = 101.5
    assert ends.later(short, 101.0) is None


def test_who_has_not_asked_for_long_asks(clock: Clock) -> None:
    """The store may take it for dead otherwise."""
    ends = LeaseEnds()
    ends.told(SECOND, 100.0, busy(1.0, 1.0, 9.0))
    clock.moment += MAX_SILENT + 0.001
    ends.told(FIRST, clock.moment, busy(1.0, 1.0, 9.0 + MAX_SILENT))
    assert ends.later(SECOND, 100.0) is None


@pytest.mark.parametrize(
    ("told", "sleeps_on"),
    [
        (busy(2.0, 2.0, 10.0), True),
        (busy(2.0, 2.0, 10.0 + TICK / 2), True),
        (busy(2.0, 2.0, 0.3), False),  # taken since, by a holder of the same words: by who is asked about, perhaps
        (busy(2.0, 2.0, 10.0, holder="another"), False),
        (busy(2.0, 2.0, None), False),
    ],
)
def test_only_what_was_told_of_the_same_holding_serves(clock: Clock, told: Busy, sleeps_on: bool) -> None:
    """Who was handed the lock, and did not hear of it, slept through its own lease: another had been told of that."""
    ends = LeaseEnds()
    ends.told(SECOND, 100.0, busy(1.0, 1.0, 9.0))
    clock.moment = 101.0
    ends.told(FIRST, 101.0, told)
    assert (ends.later(SECOND, 100.0) is not None) == sleeps_on


def test_an_answer_that_takes_its_time_is_of_the_same_holding(clock: Clock) -> None:
    """Nobody knows at which moment of the request the store looked."""
    ends = LeaseEnds()
    ends.told(SECOND, 100.0, busy(1.0, 1.0, 9.0))
    clock.moment = 101.0
    ends.told(FIRST, 100.4, busy(2.0, 2.0, 9.7))
    assert ends.later(SECOND, 100.0) is not None


def test_what_is_known_of_names_and_of_claims_does_not_grow(clock: Clock) -> None:
    ends = LeaseEnds()
    for number in range(MAX_NAMES + 10):
        one = Claim(f"stock:{number}", f"{number}", 10.0)
        ends.told(one, 100.0, Busy(1.0, 1.0))
        ends.forget(one.token)
    assert len(ends._by_name) == MAX_NAMES
    assert not ends._by_token


def test_a_queue_of_any_length_has_asked_before_another_lease_is_over() -> None:
    assert [stagger(ahead, 1.0) for ahead in range(50)] == [pytest.approx(ahead * PLACE) for ahead in range(50)]
    for ahead in (50, 10_000):
        assert all(0.5 <= stagger(ahead, 1.0) <= 1.0 for _ in range(100))


class Held:
    """A store whose only lock is held, and extended at all times."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.taken = now()

    def acquire(self, claim: Claim, join: bool, position: int) -> Granted | Busy:
        self.asked[claim.token] += 1
        return Busy(0.3, 0.3, held_for=now() - self.taken)


class HandedOver(Held):
    """A store that hands its lock to the one who waits; that it hears of it cannot be relied on."""

    def acquire(self, claim: Claim, join: bool, position: int) -> Granted | Busy:
        self.asked[claim.token] += 1
        if claim == SECOND and self.asked["second"] > 1:
            return Granted(1, now())
        return Busy(0.3, 0.3, held_for=now() - self.taken)


def test_of_the_waiters_of_a_process_one_asks() -> None:
    verbs, wakeups = Held(), Wakeups()
    port = BlockingPort(cast(BlockingVerbs, verbs), THREADS, wakeups, Executors("test"))
    answers: list[Any] = [drive(port.acquire(SECOND, None))]
    waiting = threading.Thread(target=lambda: answers.append(drive(port.wait(SECOND, answers[0], None))))
    waiting.start()
    while waiting.is_alive():
        drive(port.acquire(FIRST, None))
        waiting.join(0.01)
    assert isinstance(answers[1], Busy)
    assert verbs.asked["second"] == 1
    wakeups.wake("second")
    drive(port.wait(SECOND, answers[1], None))
    assert verbs.asked["second"] == 2, "who is woken has something to hear"


def test_who_was_handed_the_lock_and_missed_the_news_does_not_sleep_through_its_lease() -> None:
    verbs, wakeups = HandedOver(), Wakeups()
    port = BlockingPort(cast(BlockingVerbs, verbs), THREADS, wakeups, Executors("test"))
    answers: list[Any] = [drive(port.acquire(SECOND, None))]
    waiting = threading.Thread(target=lambda: answers.append(drive(port.wait(SECOND, answers[0], None))))
    waiting.start()
    verbs.taken = now() + 0.05  # handed over
    while waiting.is_alive():
        waiting.join(0.1)
        drive(port.acquire(FIRST, None))
    assert isinstance(answers[1], Granted)
