"""A lease is entered where it is used: in whichever task or thread it was taken."""

from __future__ import annotations

import asyncio
import threading

import pytest

from distlock_web import Lease, LeaseLost, current_lease, lock
from distlock_web.locks import chain
from tests.support.waiting import SOON, eventually

pytestmark = pytest.mark.usefixtures("memory_store")


async def through_another_task(**options: object) -> Lease:
    """As ``asyncio.wait_for`` does before Python 3.12."""
    return await asyncio.create_task(lock("a", **options).aacquire())  # type: ignore[arg-type]


async def test_a_lease_from_another_task_is_entered_again_without_waiting() -> None:
    """It was busy, for its own holder."""
    async with await through_another_task(expire=5) as lease:
        assert current_lease() == lease
        async with lock("a", wait=0) as nested:
            assert nested.depth == 2
    assert current_lease() is None


@pytest.mark.timing
async def test_a_lease_from_another_task_cancels_the_one_that_uses_it() -> None:
    """The task that had taken the lock was over: nobody was cancelled, and the block worked on without its lock."""
    with pytest.raises(LeaseLost):
        async with await through_another_task(expire=0.5, on_lost="cancel"):
            await asyncio.sleep(SOON)


@pytest.mark.timing
async def test_a_lease_that_is_lost_before_it_is_entered_cancels_at_once() -> None:
    lease = await through_another_task(expire=0.5, on_lost="cancel")
    await lease.lost
    with pytest.raises(LeaseLost):
        async with lease:
            await asyncio.sleep(SOON)


def test_a_lease_from_another_thread_is_entered_here() -> None:
    leases: list[Lease] = []
    thread = threading.Thread(target=lambda: leases.append(lock("a", expire=5).acquire()))
    thread.start()
    thread.join()
    with leases[0] as lease, lock("a", wait=0) as nested:
        assert current_lease() == nested
        assert lease.depth == 2
    assert current_lease() is None
    assert chain.current_chain() is chain.OUTSIDE


def test_a_lease_is_entered_once() -> None:
    with lock("a").acquire() as lease:
        assert lease.depth == 1
        with lease:
            assert current_lease() == lease
        assert current_lease() is None
    assert chain.current_chain() is chain.OUTSIDE


# Renewal goes on while somebody has the lease ------------------------------------------------------------------------

TTL = 1.2


@pytest.mark.slow
async def test_a_lease_that_a_task_returned_is_renewed_for_who_has_it() -> None:
    """Its renewal ended with the task that had taken it, and the block lost its lock."""
    lease = await asyncio.create_task(lock("a", expire=TTL, renew=True).aacquire())
    await asyncio.sleep(3 * TTL)
    async with lease:
        lease.raise_if_lost()


@pytest.mark.slow
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


# What is held already is kept -----------------------------------------------------------------------------------------


async def test_a_lock_is_kept_while_its_block_waits_for_its_turn_inside_another() -> None:
    """It was renewed while the store's queue was awaited, and ended while a sibling was."""
    order: list[str] = []

    async def sibling() -> None:
        async with lock("b", expire=1.2):
            order.append("sibling")
            await asyncio.sleep(2.4)

    async def both() -> None:
        async with lock(["a", "b"], expire=1.2, wait=SOON) as lease:
            order.append("both")
            lease.raise_if_lost()

    async with lock("b", expire=SOON):
        first = asyncio.create_task(sibling())
        await asyncio.to_thread(eventually, lambda: order, "it is inside")
        await both()
        await first
    assert order == ["sibling", "both"]
