"""``on_lost="cancel"``: which task a loss cancels."""

from __future__ import annotations

import asyncio

import pytest

from distlock_web.locks.cancelling import Cancelling
from tests.support.waiting import SOON


class Block:
    alive = True
    state = "held"


async def test_a_loss_that_meets_a_task_that_is_done_cancels_the_one_that_goes_on_in_the_block() -> None:
    block = Block()

    async def begin() -> Cancelling:
        return Cancelling(block)

    async def go_on() -> None:
        cancelling.bind_task()
        await asyncio.sleep(SOON)

    first = asyncio.create_task(begin())
    cancelling = await first
    block.state = "lost"
    cancelling.cancel_soon(block)
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError, match="the lock of this task is lost"):
        await asyncio.create_task(go_on())
    assert first.done()


async def test_a_release_by_hand_in_a_thread_takes_the_cancellation_back() -> None:
    """``await asyncio.to_thread(lease.release)`` in the task's ``finally`` left it counted."""
    block, counts = Block(), list[int]()

    async def work() -> None:
        task, cancelling = asyncio.current_task(), Cancelling(block)
        assert task is not None
        cancelling.cancel_soon(block)
        try:
            await asyncio.sleep(SOON)
        finally:
            counts.append(task.cancelling())
            for _ in range(2):  # and no other one
                assert not await asyncio.to_thread(cancelling.take_back, by_hand=True)
                counts.append(task.cancelling())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert counts == [1, 0, 0]


def test_a_release_by_hand_after_the_event_loop_is_closed_takes_nothing_back() -> None:
    block, begun, loop = Block(), list[Cancelling](), asyncio.new_event_loop()

    async def work() -> None:
        begun.append(Cancelling(block))
        begun[0].cancel_soon(block)
        await asyncio.sleep(SOON)

    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(work())
    loop.close()
    assert not begun[0].take_back(by_hand=True)
