"""What goes wrong is said once, to the right one, and never hides what the block did (laws 3, 7, 8 and 9)."""

from __future__ import annotations

import asyncio
import contextvars
import logging

import pytest

from distlock_web import BackendUnavailable, Lease, LeaseLost

from ..colours import TaskWorld, World
from ..tap import Tap
from .base import KEY, NAME, PREFIX, Cases, case, the_lock


class LossCases(Cases):
    @case
    async def test_the_bodys_exception_wins_over_a_release_that_fails(self, world: World) -> None:
        tap = Tap(world.store)
        with pytest.raises(ZeroDivisionError) as caught:
            async with world.inside(the_lock()):
                tap.cut()
                raise ZeroDivisionError("the body's")
        assert caught.value.args == ("the body's",)
        assert caught.value.__cause__ is None

    @case
    async def test_a_release_that_fails_does_not_fail_the_block(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        tap = Tap(world.store)

        async def body() -> str:
            tap.cut()
            return "sold"

        with caplog.at_level(logging.WARNING, "distlock_web"):
            assert await world.decorated(body, key=KEY, prefix=PREFIX)() == "sold"
        assert "could not be given back" in caplog.text
        assert NAME in caplog.text

    @case
    async def test_a_release_by_hand_that_fails_is_said(self, world: World) -> None:
        tap = Tap(world.store)
        lease = await world.acquire(the_lock())
        tap.cut()
        with pytest.raises(BackendUnavailable):
            await world.release(lease)

    @case
    async def test_the_bodys_exception_wins_over_a_loss_and_carries_a_note(self, world: World) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with world.inside(the_lock(expire=self.ttl)) as lease:
                await world.lost(lease)
                raise ZeroDivisionError
        assert "no longer held" in caught.value.__notes__[0]

    @case
    async def test_a_store_that_is_away_refuses_and_nothing_stays(self, world: World) -> None:
        tap = Tap(world.store)
        tap.cut()
        with pytest.raises(BackendUnavailable):
            await world.acquire(the_lock(wait=0))
        tap.mend()
        assert await world.line(NAME) is None
        assert tap.calls.count("take") == 2, "asked again once, not for a minute"

    @case
    async def test_an_acquisition_whose_answer_was_lost_is_asked_for_again(self, world: World) -> None:
        tap = Tap(world.store)
        tap.lose("take", "answer")
        async with world.inside(the_lock()) as lease:
            line = await world.line(NAME)
            assert line is not None
            assert line.fence == lease.fence
        assert await world.line(NAME) is None

    @case
    async def test_an_acquisition_that_gets_no_answer_at_all_is_undone(self, world: World) -> None:
        tap = Tap(world.store)
        tap.lose("take", "answer", "answer")
        with pytest.raises(BackendUnavailable):
            await world.acquire(the_lock())
        assert await world.line(NAME) is None

    @case
    async def test_a_waiter_whose_store_fails_for_a_moment_keeps_waiting(self, world: World) -> None:
        tap = Tap(world.store)

        async def waiter() -> None:
            async with world.inside(the_lock(wait=None)):
                pass

        async with world.inside(the_lock()):
            tap.lose("wait", "request")
            actor = world.stranger(waiter)
            await world.waiters(NAME, 1)
        await actor.result()

    @case
    async def test_a_release_whose_answer_was_lost_is_no_loss(self, world: World) -> None:
        tap = Tap(world.store)
        tap.lose("release", "answer")
        async with world.inside(the_lock()):
            pass
        assert tap.calls == ["take", "release", "release"]
        assert await world.line(NAME) is None

    @case
    async def test_a_renewal_that_fails_is_a_doubt_and_not_a_loss(self, world: World) -> None:
        tap = Tap(world.store)
        async with world.inside(the_lock(expire=self.ttl * 5, renew=True)) as lease:
            tap.lose("extend", "request", "request")
            await world.until(lambda: _state(lease, "unsure"))
            lease.raise_if_lost()
            await world.until(lambda: _state(lease, "held"))
        assert await world.line(NAME) is None

    @case
    async def test_a_store_that_stays_away_is_a_loss_at_the_deadline(self, world: World) -> None:
        tap = Tap(world.store)
        with pytest.raises(LeaseLost) as caught:
            async with world.inside(the_lock(expire=self.ttl, renew=True)) as lease:
                tap.cut()
                assert await world.lost(lease)
        assert caught.value.reason == "unreachable"

    @case
    async def test_a_revoked_lease_is_known_at_the_next_round_trip(self, world: World) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with world.inside(the_lock()) as lease:
                assert lease.fence is not None
                assert await world.port.revoke(NAME, lease.fence)
                with pytest.raises(LeaseLost) as first:
                    await world.extend(lease)
                assert first.value.reason == "revoked"
                assert lease.lost.is_set()
        assert caught.value.reason == "revoked"

    @case
    async def test_a_revoked_lease_is_known_at_its_release(self, world: World) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with world.inside(the_lock()) as lease:
                assert await world.port.revoke(NAME, lease.fence or 0)
        assert caught.value.reason == "revoked"

    @case
    async def test_a_revoked_lease_is_known_at_its_renewal(self, world: World) -> None:
        told: list[Lease] = []
        with pytest.raises(ZeroDivisionError):
            async with world.inside(the_lock(expire=self.ttl * 2, renew=True, on_lost=told.append)) as lease:
                assert await world.port.revoke(NAME, lease.fence or 0)
                assert await world.lost(lease)
                assert lease.reason == "revoked"
                raise ZeroDivisionError
        assert told == [lease]

    @case
    async def test_on_lost_warn_only_logs(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "distlock_web"):
            async with world.inside(the_lock(expire=self.ttl, on_lost="warn")) as lease:
                assert await world.lost(lease)
        assert NAME in caplog.text
        assert "no longer held" in caplog.text

    @case
    async def test_on_lost_callable_is_called_once_and_while_the_block_runs(self, world: World) -> None:
        told: list[Lease] = []
        heard = world.event()

        def hear(lease: Lease) -> None:
            told.append(lease)
            loop.call_soon_threadsafe(heard.set) if loop else heard.set()

        loop = asyncio.get_running_loop() if isinstance(world, TaskWorld) else None
        async with world.inside(the_lock(expire=self.ttl, on_lost=hear)) as lease:
            await heard.wait()
        assert told == [lease]

    @case
    async def test_on_lost_callable_is_not_called_for_a_block_that_ends_well(self, world: World) -> None:
        told: list[Lease] = []
        async with world.inside(the_lock(expire=self.ttl, on_lost=told.append)):
            pass
        await world.sleep(self.ttl * 1.2)
        assert told == []

    @case
    async def test_on_lost_cancel_ends_the_task_with_lease_lost(self, tasks: World) -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(LeaseLost) as caught:
            async with the_lock(expire=self.ttl, on_lost="cancel"):
                await asyncio.sleep(60)
        assert caught.value.reason == "expired"
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # and no cancellation is left over for what follows

    @case
    async def test_a_cancellation_is_not_hidden_by_a_release_that_fails(self, tasks: World) -> None:
        tap = Tap(tasks.store)
        inside = asyncio.Event()

        async def victim() -> None:
            async with the_lock():
                tap.cut()
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(victim())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    @case
    async def test_a_cancelled_block_gives_its_lock_back(self, tasks: World) -> None:
        inside = asyncio.Event()

        async def victim() -> None:
            async with the_lock():
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(victim())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await tasks.line(NAME) is None

    @case
    async def test_a_cancelled_waiter_leaves_the_queue(self, tasks: World) -> None:
        async with tasks.inside(the_lock()):
            context = contextvars.Context()
            task = asyncio.get_running_loop().create_task(the_lock(wait=None).aacquire(), context=context)
            await tasks.waiters(NAME, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            line = await tasks.line(NAME)
            assert line is not None
            assert line.waiters == 0


async def _state(lease: Lease, state: str) -> bool:
    return lease.state == state
