"""``hold_at_least``: a lock that is given back early stays closed for the rest of that time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from distlock_web import BackendUnavailable, LeaseLost, LockBusy, distributed_lockable, lock
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.errors import NotSent
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks.call import Call
from distlock_web.locks.lease import scope_of
from tests.support.callers import Beside, unrelated
from tests.support.waiting import LONG, SOON, eventually


def test_a_cooldown_cannot_be_prolonged_by_the_one_who_gave_the_lock_back(store: str) -> None:
    """A renewal, or a second copy of the first request, that came late made ``hold_at_least`` a whole lease."""
    with lock("a", expire=LONG, hold_at_least=LONG / 2) as lease:
        claim = scope_of(lease).holds[0].claim
    port = registry().store("default").port(THREADS)
    drive(port.extend([claim]))
    assert not isinstance(drive(port.acquire(claim, 0)), Granted)
    (line,) = drive(port.inspect())
    assert line.state == "cooldown"
    assert line.remaining <= LONG / 2


def test_a_cooldown_that_is_shorter_than_the_lease_does_not_keep_its_waiter_for_the_lease(
    store: str, beside: Beside
) -> None:
    """In memory nobody told the waiter, which slept until the lease would have ended."""
    holder = unrelated("a", hold_at_least=0.5)
    port = registry().store("default").port(THREADS)
    waiting = beside(lock("a", wait=2 * SOON).acquire)
    eventually(lambda: drive(port.inspect())[0].waiters, "it waits")
    holder.release()
    waiting.result(SOON).release()


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_that_fails_after_it_was_judged_stays_taken(monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """Its work is done. In asyncio it was free, so it was done again."""

    def fail(*_: object) -> None:
        raise RuntimeError

    async def work_async() -> None: ...

    monkeypatch.setattr(Call, "stream", fail)
    decorate = distributed_lockable(key="a", hold_at_least=LONG)
    with pytest.raises(RuntimeError):
        asyncio.run(decorate(work_async)()) if asynchronous else decorate(lambda: None)()
    (line,) = drive(registry().store("default").port(THREADS).inspect())
    assert line.state == "cooldown"


# A release whose answer does not come --------------------------------------------------------------------------------


def in_a_block(end: Callable[[], None]) -> None:
    with lock("kept", hold_at_least=LONG):
        end()


async def in_an_async_block(end: Callable[[], None]) -> None:
    async with lock("kept", hold_at_least=LONG):
        end()


def in_a_block_inside(end: Callable[[], None]) -> None:
    with lock("kept"):
        in_a_block(end)


def by_hand(end: Callable[[], None]) -> None:
    lease = lock("kept", hold_at_least=LONG).acquire()
    end()
    lease.release()


@distributed_lockable(key="kept", hold_at_least=LONG)
def in_a_call(end: Callable[[], None]) -> None:
    end()


@distributed_lockable(key="kept", hold_at_least=LONG)
async def in_an_async_call(end: Callable[[], None]) -> None:
    end()


WAYS = [in_a_block, in_an_async_block, in_a_block_inside, by_hand, in_a_call, in_an_async_call]


def run(way: Callable[..., Any], end: Callable[[], None]) -> None:
    asyncio.run(way(end)) if asyncio.iscoroutinefunction(way) else way(end)


def first_release(monkeypatch: pytest.MonkeyPatch, *, done: bool, error: type[BackendUnavailable]) -> None:
    """The answer to the first release does not come, and the lease ends meanwhile."""
    release, tries = MemoryPort.release, list[str]()

    async def unanswered(port: MemoryPort, claim: Claim, *args: Any) -> Any:
        tries.append(claim.name)
        if len(tries) > 1:
            return await release(port, claim, *args)
        if done:
            await release(port, claim, *args)
        else:
            port._lock(claim.name).owners[claim.token].until = 0.0
        raise error("No answer to the release.")

    monkeypatch.setattr(MemoryPort, "release", unanswered)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("error", [NotSent, BackendUnavailable])
@pytest.mark.parametrize("way", WAYS)
def test_a_lock_that_was_free_while_it_should_have_been_kept_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, way: Callable[..., Any], error: type[BackendUnavailable]
) -> None:
    """Had the first release been done, the lock would be kept for it. A line in the log said that it was released."""
    first_release(monkeypatch, done=False, error=error)
    with pytest.raises(LeaseLost) as caught:
        run(way, lambda: None)
    assert caught.value.reason == "expired"


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("way", WAYS)
def test_a_lock_that_is_kept_though_its_release_was_not_answered_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, way: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    first_release(monkeypatch, done=True, error=BackendUnavailable)
    run(way, lambda: None)
    (line,) = drive(registry().store("default").port(THREADS).inspect())
    assert line.state == "cooldown"
    assert [line for line in caplog.records if vars(line).get("lock_name") == "disLock:kept"] == []


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("way", [way for way in WAYS if way is not by_hand])
def test_what_had_not_to_be_kept_after_an_error_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, way: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The lock is not kept after an error. So the first release may have been done."""
    first_release(monkeypatch, done=False, error=BackendUnavailable)

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run(way, fail)
    assert not hasattr(caught.value, "__notes__")
    assert "Most likely it was released" in caplog.text


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("nested", [False, True])
def test_a_block_that_does_not_begin_keeps_nothing_taken(nested: bool) -> None:
    """Nor the lock of the block around it, which it had entered."""
    unrelated("z")
    with lock("a") if nested else nullcontext(), pytest.raises(LockBusy):
        lock(["a", "b", "z"], hold_at_least=LONG, wait=0).acquire()
    assert [line.name for line in drive(registry().store("default").port(THREADS).inspect())] == ["disLock:z"]
