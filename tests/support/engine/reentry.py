"""Re-entry follows the call chain, not a thread or task identity (law 2)."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable

import pytest

from distlock_web import LeaseLost, LockBusy, current_lease, lock
from distlock_web.testing.contract.base import KEY, NAME, PREFIX, Cases, case, the_lock
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import Harness


class ReentryCases(Cases):
    @case
    async def test_a_call_inside_the_block_enters_without_asking_the_store(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as outer:
            injector = FaultInjector(harness.store)
            async with harness.inside(the_lock()) as inner:
                assert (outer.depth, inner.depth) == (2, 2)
                assert inner.fence == outer.fence
                assert current_lease() == inner
            assert injector.calls == []
            assert outer.depth == 1
            assert current_lease() == outer
            outer.raise_if_lost()
            assert await harness.line(NAME) is not None
        assert await harness.line(NAME) is None
        assert current_lease() is None

    @case
    async def test_a_decorated_function_may_call_itself(self, harness: Harness) -> None:
        async def countdown(left: int) -> list[int]:
            return [left, *(await again(left - 1) if left else [])]

        again: Callable[[int], Awaitable[list[int]]] = harness.decorated(countdown, key=KEY, prefix=PREFIX, wait=0)
        injector = FaultInjector(harness.store)
        assert await again(3) == [3, 2, 1, 0]
        assert injector.calls == ["acquire", "release"]

    @case
    async def test_an_inner_one_that_nobody_has_any_more_keeps_nobody_out(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as outer:
            await harness.acquire(the_lock())
            gc.collect()
            assert outer.depth == 1
            async with harness.inside(the_lock()) as inner:
                assert inner.depth == 2

    @case
    async def test_a_longer_lease_inside_extends(self, harness: Harness) -> None:
        async with harness.inside(the_lock(expire=5)) as outer:
            async with harness.inside(the_lock(expire=100)) as inner:
                assert inner.remaining > 50
                line = await harness.shown(NAME)
                assert line.remaining > 50
            injector = FaultInjector(harness.store)
            async with harness.inside(the_lock(expire=3)):
                assert outer.remaining > 50
            assert injector.calls == []

    @case
    async def test_siblings_inside_a_block_take_turns(self, harness: Harness) -> None:
        """If all of them re-entered, they would exclude nobody."""
        inside, most, count = 0, 0, 0

        async def sibling() -> None:
            nonlocal inside, most, count
            async with harness.inside(the_lock(wait=None)):
                inside += 1
                most = max(most, inside)
                seen = count
                await harness.sleep(0.002)
                count = seen + 1
                inside -= 1

        async with harness.inside(the_lock()):
            for actor in [harness.sibling(sibling) for _ in range(8)]:
                await actor.result()
        assert (most, count) == (1, 8)

    @case
    async def test_a_sibling_that_does_not_wait_hears_busy(self, harness: Harness) -> None:
        entered, leave = harness.event(), harness.event()

        async def first() -> None:
            async with harness.inside(the_lock()):
                entered.set()
                await leave.wait()

        async def second() -> None:
            with pytest.raises(LockBusy):
                await harness.acquire(the_lock())
            with pytest.raises(LockBusy):
                await harness.acquire(the_lock(wait=0.02))

        async with harness.inside(the_lock()):
            actor = harness.sibling(first)
            await entered.wait()
            await harness.sibling(second).result()
            leave.set()
            await actor.result()
            # The one that gave up has left nothing: the gate is open again.
            async with harness.inside(the_lock()):
                pass

    @case
    async def test_siblings_that_hold_nothing_exclude_each_other_like_unrelated_callers(self, harness: Harness) -> None:
        entered, leave = harness.event(), harness.event()

        async def first() -> None:
            async with harness.inside(the_lock()):
                entered.set()
                await leave.wait()

        actor = harness.sibling(first)
        await entered.wait()
        assert await harness.sibling(lambda: harness.try_acquire(the_lock())).result() is None
        leave.set()
        await actor.result()

    @case
    async def test_a_task_that_outlives_the_block_holds_nothing(self, harness: Harness) -> None:
        block_over, taken = harness.event(), harness.event()

        async def survivor() -> None:
            await block_over.wait()
            assert current_lease() is None
            with pytest.raises(LockBusy):
                await harness.acquire(the_lock())
            taken.set()

        async with harness.inside(the_lock()):
            actor = harness.sibling(survivor)

        async def unrelated() -> None:
            async with harness.inside(the_lock()):
                block_over.set()
                await taken.wait()

        await harness.unrelated(unrelated).result()
        await actor.result()

    @case
    async def test_a_sibling_waiting_for_the_gate_acquires_the_lock_itself_when_the_block_ends(
        self, harness: Harness
    ) -> None:
        begun = harness.event()

        async def first() -> None:
            async with harness.inside(the_lock()):
                begun.set()
                await leave.wait()

        async def second() -> bool:
            waiting.set()
            async with harness.inside(the_lock(wait=None)) as lease:
                return lease.depth == 1 and lease.fence != outer.fence

        leave, waiting = harness.event(), harness.event()
        async with harness.inside(the_lock()) as outer:
            occupant = harness.sibling(first)
            await begun.wait()
            late = harness.sibling(second)
            await waiting.wait()
        leave.set()
        # What the occupant was lent has ended with the outer block, and it is told.
        with pytest.raises(LeaseLost):
            await occupant.result()
        assert await late.result()
        assert await harness.line(NAME) is None

    @case
    async def test_entering_a_lost_lock_again_is_refused(self, harness: Harness) -> None:
        with pytest.raises(LeaseLost):
            async with harness.inside(the_lock(expire=self.ttl)) as lease:
                assert await harness.lost(lease)
                injector = FaultInjector(harness.store)
                with pytest.raises(LeaseLost):
                    await harness.acquire(the_lock())
                assert injector.calls == []

    @case
    async def test_an_overlap_of_several_keys_re_enters_the_common_one(self, harness: Harness) -> None:
        async with harness.inside(lock(["a", "b"], prefix=PREFIX, wait=0)):
            injector = FaultInjector(harness.store)
            async with harness.inside(lock(["b", "c"], prefix=PREFIX, wait=0)) as inner:
                assert sorted(inner.names) == ["test:b", "test:c"]
                assert injector.calls == ["acquire"]
            assert injector.calls == ["acquire", "release"]
            assert {line.name for line in await harness.port.inspect()} == {"test:a", "test:b"}
