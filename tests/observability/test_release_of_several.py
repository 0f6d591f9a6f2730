"""The locks of one block are all released before anybody is told of it: a listener delays none of them."""

from __future__ import annotations

import time

import pytest

from distlock_web import BackendUnavailable, events, lock
from distlock_web.core.backend import LockInfo
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks.events import Event
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import Harness
from tests.support.modes import in_both_modes
from tests.support.revoking import revoke

pytestmark = pytest.mark.usefixtures("memory_store")


def held() -> list[LockInfo]:
    return drive(registry().store("default").port(THREADS).inspect())


def said(seen: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.name[-1]) for event in seen if event.kind not in ("acquired", "waited")]


@in_both_modes
async def test_whoever_is_told_of_the_first_finds_all_released(harness: Harness, seen: list[Event]) -> None:
    left: list[int] = []
    events.subscribe(lambda event: left.append(len(held())) if event.kind == "released" else None, inline=True)
    async with harness.inside(lock(["a", "b", "c"])):
        assert len(held()) == 3
    assert left == [0, 0, 0]
    assert said(seen) == [("released", "c"), ("released", "b"), ("released", "a")]


def test_what_is_told_is_what_was_when_it_happened(seen: list[Event]) -> None:
    told_at: list[float] = []
    events.subscribe(lambda event: told_at.append(time.time()) if event.kind == "released" else None, inline=True)
    with lock(["a", "b"]):
        pass
    assert all(event.at <= told_at[0] for event in seen), "nobody's slowness is in it"


@in_both_modes
async def test_also_of_one_that_was_lost_and_one_that_could_not_be_released(
    harness: Harness, seen: list[Event]
) -> None:
    left: list[int] = []
    injector = FaultInjector(harness.store)
    lease = await harness.acquire(lock(["a", "b", "c"]))
    [fence] = [held_lock.fence for held_lock in held() if held_lock.name == "disLock:b"]
    assert revoke("disLock:b", fence)
    events.subscribe(lambda event: left.append(len(held())), inline=True)
    injector.lose("release", "request", "request")
    with pytest.raises(BackendUnavailable):
        await harness.release(lease)
    assert said(seen) == [("released", "c"), ("error", "c"), ("lost", "b"), ("released", "a")]
    assert left == [1] * 4, "the one that the store has not heard of"


def test_a_signal_in_a_listener_loses_nothing(seen: list[Event]) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "released":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lock(["a", "b", "c"]):
        events.subscribe(interrupt, inline=True)
    assert held() == []
    assert said(seen) == [("released", "c"), ("released", "b"), ("released", "a")]
