"""``with lease:``: the block runs under the lock or not at all, in whichever task or thread it is entered."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Literal

import pytest

from distlock_web import ConfigurationError, Lease, LeaseLost, NotHeld, current_lease, lock
from distlock_web.core.backend import Port
from distlock_web.core.registry import registry
from distlock_web.core.runtime import TASKS, THREADS, drive
from tests.support.callers import unrelated
from tests.support.renewals import renewed_now
from tests.support.revoking import revoke
from tests.support.waiting import LONG, SOON

ENDS: dict[str, Callable[[Lease], object]] = {
    "released": lambda lease: lease.release(),
    "handed over": lambda lease: lease.detach(),
    "its block has ended": lambda lease: lease.__exit__(None, None, None),
}


def held() -> list[str]:
    return [line.name for line in drive(registry().store("default").port(THREADS).inspect())]


async def aheld() -> list[str]:
    return [line.name for line in await registry().store("default").port(TASKS).inspect()]


# A lease that is over ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store")
async def test_a_lease_out_of_wait_for_is_the_callers_once_it_is_entered() -> None:
    lease = await asyncio.wait_for(lock("a").aacquire(), SOON)
    assert current_lease() == (lease if sys.version_info >= (3, 12) else None), "docs/how.md says so"
    async with lease:
        assert current_lease() == lease
        async with lock("a") as inner:
            assert inner.depth == 2
    assert current_lease() is None
    async with asyncio.timeout(SOON):
        lease = await lock("a").aacquire()
    assert current_lease() == lease
    await lease.arelease()


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_lease_that_is_over_is_not_entered(end: Callable[[Lease], object]) -> None:
    """The body ran without a lock, and nobody was told."""
    lease = lock("a").acquire()
    end(lease)
    with pytest.raises(NotHeld, match="is over"), lease:
        pytest.fail("the body ran")


@pytest.mark.usefixtures("memory_store")
def test_a_lost_lease_is_not_entered_and_what_it_has_still_is_released() -> None:
    """Whoever enters a lease has it released: nobody else will."""
    lease = lock(["a", "b"]).acquire()
    assert revoke("disLock:b", lease.fences["disLock:b"])
    with pytest.raises(LeaseLost):
        lease.extend()
    with pytest.raises(LeaseLost) as caught, lease:
        pytest.fail("the body ran")
    assert caught.value.reason == "revoked"
    assert held() == []
    lock("a").acquire().release()  # the call chain is not inside of it any more


@pytest.mark.timing
@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("on_lost", ["raise", "warn"])
async def test_an_expired_lease_is_not_entered_by_a_task(on_lost: str) -> None:
    lease = await lock("a", expire=0.5, on_lost=on_lost).aacquire()  # type: ignore[arg-type]
    await lease.lost
    with pytest.raises(LeaseLost) as caught:
        async with lease:
            pytest.fail("the body ran")
    assert caught.value.reason == "expired"
    await (await lock("a", wait=SOON).aacquire()).arelease()  # the call chain is not inside of it any more


# In another task or thread ------------------------------------------------------------------------------------------


async def test_a_blocking_block_in_an_event_loop_is_refused_before_it_begins(memory_store: None) -> None:
    """Its end refused it: the body's exception was hidden, and the lock was left held."""
    lease = await lock("a").aacquire()
    with pytest.raises(ConfigurationError, match="async with lease"), lease:
        pytest.fail("the body ran")
    assert lease.state == "held"
    async with lease:
        pass
    assert await aheld() == []


@pytest.mark.parametrize("on_lost", ["raise", "cancel"])
async def test_a_task_hands_its_lease_to_a_thread_and_waits_for_it(
    store: str, on_lost: Literal["raise", "cancel"]
) -> None:
    lease = await lock("a", expire=60, on_lost=on_lost).aacquire()

    def work() -> None:
        with lease:
            lease.extend()

    await asyncio.to_thread(work)
    assert await aheld() == []


@pytest.mark.parametrize("verb", ["aextend", "arelease", "adetach", "block"])
async def test_a_threads_lease_does_not_block_the_loop_that_uses_it(
    memory_store: None, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocking port was asked, in the loop."""
    lease = await asyncio.to_thread(unrelated, "a")

    def refuse() -> Port:
        raise AssertionError("the blocking port is asked in an event loop")

    monkeypatch.setattr(registry().store("default").backend, "sync_port", refuse)
    if verb == "block":
        async with lease:
            pass
    else:
        await getattr(lease, verb)()


@pytest.mark.usefixtures("memory_store")
async def test_waiting_for_the_loss_as_a_thread_does_is_refused_in_a_loop() -> None:
    """It stopped every other task, and the watchdog's word with them."""
    async with lock("a") as lease:
        with pytest.raises(ConfigurationError, match=r"await lease\.lost"):
            lease.lost.wait(0.01)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("verb", ["release", "extend", "detach"])
async def test_a_blocking_method_in_a_loop_says_what_to_write(verb: str) -> None:
    async with lock("a") as lease:
        with pytest.raises(ConfigurationError, match=rf"await lease\.a{verb}\(\)"):
            getattr(lease, verb)()
        lease.raise_if_lost()


@pytest.mark.timing
@pytest.mark.usefixtures("memory_store")
async def test_a_lease_that_is_lost_before_it_is_entered_cancels_at_once() -> None:
    lease = await asyncio.create_task(lock("a", expire=0.5, on_lost="cancel").aacquire())
    await lease.lost
    with pytest.raises(LeaseLost):
        async with lease:
            await asyncio.sleep(SOON)


# Renewal goes on while somebody has the lease ------------------------------------------------------------------------

TTL = 1.2


@pytest.mark.usefixtures("memory_store")
async def test_a_lease_that_a_task_returned_is_renewed_for_who_has_it() -> None:
    """Its renewal ended with the task that had taken it, and the block lost its lock."""
    lease = await asyncio.create_task(lock("a", expire=LONG, renew=True).aacquire())
    for _ in range(3):
        await asyncio.to_thread(renewed_now, lease)
    async with lease:
        lease.raise_if_lost()


@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
async def test_a_loss_cancels_the_task_that_entered_and_not_the_one_that_took_it() -> None:
    async def taker(taken: asyncio.Future[Lease]) -> str:
        taken.set_result(await lock("a", expire=TTL, on_lost="cancel").aacquire())
        await asyncio.sleep(3 * TTL)
        return "not cancelled"

    taken = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(taker(taken))
    with pytest.raises(LeaseLost):
        async with await taken:
            await asyncio.sleep(SOON)
    assert await task == "not cancelled"
