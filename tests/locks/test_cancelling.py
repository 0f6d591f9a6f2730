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
