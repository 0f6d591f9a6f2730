"""The rules of waiting, where they are written in plain Python."""

from __future__ import annotations

import asyncio
import time

import pytest

from distlock_web import configure
from distlock_web.backends import memory
from distlock_web.backends.memory import FORGET_AFTER, MemoryPort
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import TASKS, THREADS, drive, new_token, now
from tests.support.callers import Beside
from tests.support.waiting import SOON


def claim(expire: float = 60.0) -> Claim:
    return Claim("a", new_token(), expire)


@pytest.fixture
def port() -> MemoryPort:
    port = configure({"default": {"BACKEND": "memory"}}).store("default").port(THREADS)
    assert isinstance(port, MemoryPort)
    return port


def acquired(port: MemoryPort, asked: Claim) -> Granted:
    answer = drive(port.acquire(asked, 0))
    assert isinstance(answer, Granted)
    return answer


def queued(port: MemoryPort, asked: Claim) -> Busy:
    answer = drive(port.acquire(asked, None))
    assert isinstance(answer, Busy)
    return answer


def test_nobody_sleeps_longer_than_a_lease_of_its_own(port: MemoryPort) -> None:
    """Each place in the queue cost a second, and a short lease slept for a long one's time."""
    acquired(port, claim(600))
    sleeps = [queued(port, claim(1)).recheck_after for _ in range(20)]
    assert sleeps == sorted(sleeps)
    assert sleeps[0] == 1
    assert sleeps[-1] < 1.1


def test_a_lease_that_is_shorter_than_those_who_wait_know_wakes_the_first(port: MemoryPort, beside: Beside) -> None:
    """Handed to a short lease whose holder never answers, the lock was free for as long as the long one had been."""
    holder, silent, waiting = claim(), claim(0.2), claim()
    acquired(port, holder)
    queued(port, silent)
    busy = queued(port, waiting)

    def wait() -> object:
        answer: Busy | Granted = busy
        while isinstance(answer, Busy):
            answer = drive(port.wait(waiting, answer, None))
        return answer

    result = beside(wait)
    assert drive(port.release(holder)) is None
    assert isinstance(result.result(SOON), Granted)


def test_a_waiter_whose_event_loop_has_closed_is_not_handed_the_lock(port: MemoryPort) -> None:
    holder, gone, waiting = claim(), claim(), claim()
    acquired(port, holder)

    async def wait() -> None:
        assert isinstance(await registry().store("default").port(TASKS).acquire(gone, None), Busy)

    asyncio.run(wait())
    queued(port, waiting)
    drive(port.release(holder))
    assert drive(port.extend([gone, waiting])) == ["taken", None]


@pytest.mark.parametrize("alive", [0, 1, 2])
def test_a_waiter_whose_event_loop_has_closed_takes_nobodys_place(port: MemoryPort, alive: int) -> None:
    """Behind one that is alive it counted for ``max_waiters``."""
    acquired(port, claim())
    for _ in range(alive):
        queued(port, claim())

    async def wait() -> None:
        assert isinstance(await registry().store("default").port(TASKS).acquire(claim(), None), Busy)

    asyncio.run(wait())
    asyncio.run(wait())
    assert queued(port, claim()._replace(max_waiters=alive)).full
    assert not queued(port, claim()._replace(max_waiters=alive + 1)).full


def test_fences_grow_though_the_clock_is_set_back(port: MemoryPort, monkeypatch: pytest.MonkeyPatch) -> None:
    first = claim()
    fence = acquired(port, first).fence or 0
    drive(port.release(first))
    before = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: before - 3600 * 10**9)
    assert (acquired(port, Claim("b", new_token(), 60)).fence or 0) == fence + 1


def test_names_that_nobody_uses_are_forgotten(port: MemoryPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name that was ever asked for stayed."""
    offset = 0.0
    monkeypatch.setattr(memory, "now", lambda: now() + offset)
    held, waiting = claim(600), claim(600)
    acquired(port, held)
    queued(port, waiting)
    for number in range(100):
        mine = Claim(f"order:{number}", new_token(), 60)
        acquired(port, mine)
        drive(port.release(mine))
    assert drive(port.release(mine)) is None, "a second copy is told the truth"
    offset = FORGET_AFTER + 1
    drive(port.inspect())
    drive(port.extend([claim()._replace(name="another")]))
    assert port._table.locks.keys() == {"a", "another"}
    assert drive(port.release(held)) is None
    assert drive(port.extend([waiting])) == [None], "and what is in use is what it was"
