"""What goes wrong is said once, to the right one, and never hides what the block did (laws 3, 7, 8 and 9)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from distlock_web import BackendUnavailable, Lease, LeaseLost, lock
from distlock_web.locks.lease import scope_of
from distlock_web.locks.scope import Scope
from distlock_web.testing.contract.base import KEY, NAME, PREFIX, Cases, case, the_lock
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import AsyncHarness, Harness


class LossCases(Cases):
    @case
    async def test_the_bodys_exception_wins_over_a_release_that_fails(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        with pytest.raises(ZeroDivisionError) as caught:
            async with harness.inside(the_lock()):
                injector.cut()
                raise ZeroDivisionError("the body's")
        assert caught.value.args == ("the body's",)
        assert caught.value.__cause__ is None

    @case
    async def test_a_release_that_fails_does_not_fail_the_block(
        self, harness: Harness, caplog: pytest.LogCaptureFixture
    ) -> None:
        injector = FaultInjector(harness.store)

        async def body() -> str:
            injector.cut()
            return "sold"

        with caplog.at_level(logging.WARNING, "distlock_web"):
            assert await harness.decorated(body, key=KEY, prefix=PREFIX)() == "sold"
        assert "could not be released" in caplog.text
        assert NAME in caplog.text
        assert not any(record.exc_info for record in caplog.records), "an outage is no bug: no traceback"

    @case
    async def test_a_release_by_hand_that_fails_is_said(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        lease = await harness.acquire(the_lock())
        injector.cut()
        with pytest.raises(BackendUnavailable):
            await harness.release(lease)

    @case
    async def test_the_bodys_exception_wins_over_a_loss_and_carries_a_note(self, harness: Harness) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with harness.inside(the_lock(expire=self.ttl)) as lease:
                await harness.lost(lease)
                raise ZeroDivisionError
        assert caught.value.__notes__[0].startswith(f"distlock_web: The lock {NAME!r} is no longer held: ")

    @case
    async def test_a_store_that_is_unreachable_refuses_and_nothing_stays(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        injector.cut()
        with pytest.raises(BackendUnavailable):
            await harness.acquire(the_lock(wait=0))
        injector.mend()
        assert await harness.line(NAME) is None
        assert injector.calls.count("acquire") == 2, "asked again once, not for a minute"

    @case
    async def test_an_acquisition_whose_answer_was_lost_is_asked_for_again(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        injector.lose("acquire", "answer")
        async with harness.inside(the_lock()) as lease:
            line = await harness.shown(NAME)
            assert line.fence == lease.fence
        assert await harness.line(NAME) is None

    @case
    async def test_an_acquisition_that_gets_no_answer_at_all_is_undone(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        injector.lose("acquire", "answer", "answer")
        with pytest.raises(BackendUnavailable):
            await harness.acquire(the_lock())
        assert await harness.line(NAME) is None

    @case
    async def test_a_waiter_whose_store_fails_for_a_moment_keeps_waiting(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)

        async def waiter() -> None:
            async with harness.inside(the_lock(wait=None)):
                pass

        async with harness.inside(the_lock()):
            injector.lose("wait", "request")
            actor = harness.unrelated(waiter)
            await harness.waiters(NAME, 1)
        await actor.result()

    @case
    async def test_a_release_whose_answer_was_lost_is_no_loss(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        injector.lose("release", "answer")
        async with harness.inside(the_lock()):
            pass
        assert injector.calls == ["acquire", "release", "release"]
        assert await harness.line(NAME) is None

    @case
    async def test_a_renewal_that_fails_makes_a_lease_unsure_and_not_lost(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        async with harness.inside(the_lock(expire=6, renew=True)) as lease:
            injector.lose("extend", "request", "request")
            await harness.until(lambda: _state(lease, "unsure"))
            lease.raise_if_lost()
            await harness.until(lambda: _state(lease, "held"))
        assert await harness.line(NAME) is None

    @case
    async def test_a_store_that_stays_unreachable_is_a_loss_at_the_deadline(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        with pytest.raises(LeaseLost) as caught:
            async with harness.inside(the_lock(expire=self.kept, renew=True)) as lease:
                injector.cut()
                assert await harness.lost(lease)
        assert caught.value.reason == "unreachable"

    @case
    async def test_an_extension_that_was_never_answered_holds_the_lock_for_nobody(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        with pytest.raises(LeaseLost):
            async with harness.inside(the_lock(expire=self.kept)) as lease:
                injector.lose("extend", "answer", "answer")
                with pytest.raises(BackendUnavailable):
                    await harness.extend(lease, 60)
                assert await harness.lost(lease)
                assert await harness.line(NAME) is not None, "the store has extended it"
        assert await harness.line(NAME) is None

    @case
    async def test_a_revoked_lease_is_known_at_the_next_round_trip(self, harness: Harness) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with harness.inside(the_lock()) as lease:
                assert lease.fence is not None
                assert await harness.port.revoke(NAME, lease.fence)
                with pytest.raises(LeaseLost) as first:
                    await harness.extend(lease)
                assert first.value.reason == "revoked"
                assert lease.lost.is_set()
        assert caught.value.reason == "revoked"

    @pytest.mark.parametrize(("on_lost", "raises"), [("raise", True), ("warn", False), ("cancel", True)])
    @case
    async def test_a_block_that_ends_well_after_all_is_told_as_on_lost_says(
        self, tasks: Harness, on_lost: Any, raises: bool
    ) -> None:
        with pytest.raises(LeaseLost) if raises else nullcontext():
            async with the_lock(on_lost=on_lost) as lease:
                assert lease.fence is not None
                await tasks.port.revoke(NAME, lease.fence)
                with pytest.raises(LeaseLost):
                    await lease.aextend()

    @case
    async def test_on_lost_callable_is_called_once_and_while_the_block_runs(self, harness: Harness) -> None:
        told: list[Lease] = []
        heard = harness.event()

        def hear(lease: Lease) -> None:
            told.append(lease)
            loop.call_soon_threadsafe(heard.set) if loop else heard.set()

        loop = asyncio.get_running_loop() if isinstance(harness, AsyncHarness) else None
        async with harness.inside(the_lock(expire=self.ttl, on_lost=hear)) as lease:
            await heard.wait()
        assert told == [lease]

    @case
    async def test_on_lost_callable_is_not_called_for_a_block_that_ends_well(self, harness: Harness) -> None:
        told: list[Lease] = []
        async with harness.inside(the_lock(expire=self.kept, on_lost=told.append)):
            pass
        await harness.sleep(self.kept * 1.1)
        assert told == []

    @case
    async def test_on_lost_cancel_ends_the_task_with_lease_lost(self, tasks: Harness) -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(LeaseLost) as caught:
            async with the_lock(expire=self.ttl, on_lost="cancel"):
                await asyncio.sleep(60)
                pytest.fail("the block went on")
        assert caught.value.reason == "expired"
        assert str(caught.value.__cause__) == "the lock of this task is lost"
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # and no cancellation is left over for what follows

    @case
    async def test_on_lost_cancel_takes_no_other_cancellation_for_its_own(self, tasks: Harness) -> None:
        """The generator's block belongs to a task that has ended: that one was not cancelled, and another one is."""

        async def rows() -> AsyncGenerator[Lease, None]:
            async with the_lock(on_lost="cancel") as lease:
                yield lease

        generator = rows()
        begun = asyncio.create_task(anext(generator))
        lease = await begun
        assert lease.fence is not None
        await tasks.port.revoke(NAME, lease.fence)
        with pytest.raises(LeaseLost):
            await lease.aextend()
        await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await generator.athrow(asyncio.CancelledError())
        assert begun.done()

    @pytest.mark.parametrize("how", ["a block", "by hand", "by hand, and the store fails", "by hand, in a task beside"])
    @pytest.mark.parametrize("others", ["none", "before", "meanwhile", "after"])
    @case
    async def test_on_lost_cancel_takes_back_its_own_cancellation_and_no_other(
        self, tasks: Harness, others: str, how: str
    ) -> None:
        """By hand it was never taken back; by hand in a task beside (``asyncio.shield``) still not. In the ``finally``
        of a task that is cancelled it was thought another's; in a cleanup that it has interrupted, the other way round.
        """
        counts = list[int]()
        injector = FaultInjector(tasks.store)

        async def wait_for_the_loss(lease: Lease) -> None:
            if others == "meanwhile":
                _cancel_this_task()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            scope_of(lease).holds[0].lose("revoked")
            try:
                await asyncio.sleep(60)
            finally:
                if others == "after":
                    _cancel_this_task()

        async def work() -> None:
            locks = lock([KEY, "other"], prefix=PREFIX, expire=30, wait=0, on_lost="cancel")
            if how == "a block":
                async with locks as lease:
                    await wait_for_the_loss(lease)
            else:
                lease = await locks.aacquire()
                try:
                    await wait_for_the_loss(lease)
                finally:
                    if "fails" in how:
                        injector.cut()
                    if "beside" in how:
                        beside.append(asyncio.ensure_future(lease.arelease()))
                        await asyncio.shield(beside[0])
                    else:
                        await lease.arelease()

        beside = list[asyncio.Future[None]]()

        async def task() -> str:
            if others == "before":
                _cancel_this_task()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            try:
                await work()
            except BaseException as error:
                return type(error).__name__
            finally:
                counts.append(running.cancelling())
                with suppress(asyncio.CancelledError):  # where the release had not to wait it is still to come
                    await asyncio.sleep(0)
            return ""

        running = asyncio.create_task(task())
        heard = await running
        await asyncio.gather(*beside, return_exceptions=True)
        assert counts == [0 if others == "none" else 1]
        if others == "after" and heard == "CancelledError":  # the release was interrupted, too
            return
        if how != "a block":
            assert heard == ("BackendUnavailable" if "fails" in how else "LeaseLost")
        else:
            assert heard == ("LeaseLost" if others in ("none", "before") else "CancelledError")

    @case
    async def test_on_lost_cancel_takes_no_other_tasks_cancellation_for_its_own(self, tasks: Harness) -> None:
        """The generator was begun by a task that still runs, and is read on by one that is cancelled."""
        begun, reads_on, heard, go_on = (asyncio.Event() for _ in range(4))

        async def rows() -> AsyncGenerator[Lease, None]:
            async with the_lock(on_lost="cancel") as lease:
                yield lease
                reads_on.set()
                await asyncio.sleep(60)

        generator = rows()

        async def first() -> None:
            scopes.append(scope_of(await anext(generator)))
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.set()
            await go_on.wait()

        async def second() -> None:
            await anext(generator)

        scopes = list[Scope]()
        beginning = asyncio.create_task(first())
        await begun.wait()
        reading = asyncio.create_task(second())
        await reads_on.wait()
        scopes[0].holds[0].lose("revoked")
        await heard.wait()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        go_on.set()
        await beginning

    @case
    async def test_a_nested_block_that_has_ended_is_told_of_no_loss(self, harness: Harness) -> None:
        told: list[Lease] = []
        with pytest.raises(LeaseLost):
            async with harness.inside(the_lock()) as outer:
                async with harness.inside(the_lock(on_lost=told.append)) as nested:
                    assert nested.depth == 2
                assert outer.fence is not None
                await harness.port.revoke(NAME, outer.fence)
                with pytest.raises(LeaseLost):
                    await harness.extend(outer)
        assert told == []

    @case
    async def test_a_cancellation_is_not_hidden_by_a_release_that_fails(self, tasks: Harness) -> None:
        injector = FaultInjector(tasks.store)
        inside = asyncio.Event()

        async def victim() -> None:
            async with the_lock():
                injector.cut()
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(victim())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


def _cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _state(lease: Lease, state: str) -> bool:
    return lease.state == state
