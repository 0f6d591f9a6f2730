"""A lease lives as long as it says: not shorter, not longer, and its holder knows when it ends (laws 2, 6 and 7)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from distlock_web import ConfigurationError, LeaseLost, NotHeld, lock
from distlock_web.core.runtime import now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import KEY, NAME, PREFIX, Cases, case, the_lock
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import PATIENCE, Harness


class LeaseCases(Cases):
    @case
    async def test_a_block_that_outlives_its_lease_is_notified(self, harness: Harness) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with harness.inside(the_lock(expire=self.ttl)) as lease:
                assert await harness.lost(lease)
                assert lease.lost.is_set()
                assert lease.remaining == 0
        assert caught.value.reason == "expired"
        await harness.until_free(NAME)

    @case
    async def test_extend_gives_a_lease_more_time(self, harness: Harness) -> None:
        async with harness.inside(the_lock(expire=10)) as lease:
            await harness.extend(lease, 60)
            assert 50 < lease.remaining <= 60
            await harness.extend(lease, 1)
            assert lease.remaining > 50, "extending never shortens"

    @case
    async def test_an_extension_shorter_than_the_store_can_express_is_refused(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as lease:
            for expire in (0.000_001, harness.store.backend.capabilities.min_expire / 2):
                with pytest.raises(ConfigurationError, match="expire"):
                    await harness.extend(lease, expire)
            lease.raise_if_lost()

    @case
    async def test_a_lost_lease_cannot_be_extended_back_to_life(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock(expire=self.ttl))
        assert await harness.lost(lease)
        with pytest.raises(LeaseLost):
            await harness.extend(lease)
        with pytest.raises(LeaseLost):
            await harness.release(lease)
        await harness.until_free(NAME)

    @case
    async def test_a_lease_is_given_back_once(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock())
        await harness.release(lease)
        assert lease.state == "released"
        for again in (harness.release, harness.extend, harness.detach):
            with pytest.raises(NotHeld, match="over"):
                await again(lease)
        successor = await harness.acquire(the_lock())
        with pytest.raises(NotHeld):
            await harness.release(lease)
        await harness.release(successor)

    @case
    async def test_giving_back_inside_the_block_is_enough(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        async with harness.inside(the_lock()) as lease:
            await harness.release(lease)
        assert injector.calls == ["acquire", "release"]

    @case
    async def test_renew_for_bounds_the_renewal(self, harness: Harness) -> None:
        begun = now()
        with pytest.raises(LeaseLost) as caught:
            async with harness.inside(the_lock(expire=self.ttl, renew=True, renew_for=self.ttl)) as lease:
                assert await harness.lost(lease)
                assert now() - begun > self.ttl, "renewed at least once"
        assert caught.value.reason == "expired"

    @case
    async def test_hold_at_least_does_not_keep_the_lock_after_a_failure(self, harness: Harness) -> None:
        with pytest.raises(ZeroDivisionError):
            async with harness.inside(the_lock(hold_at_least=60)):
                raise ZeroDivisionError
        assert await harness.line(NAME) is None

    @case
    async def test_hold_for_counts_from_the_beginning(self, harness: Harness) -> None:
        async with harness.inside(the_lock(hold_at_least=self.ttl)):
            await harness.sleep(self.ttl * 1.1)
        assert await harness.line(NAME) is None

    @pytest.mark.parametrize("around", [(), (KEY,), (KEY, "other")])
    @case
    async def test_waiting_until_a_lease_is_lost_ends_when_it_is_given_back(
        self, harness: Harness, around: tuple[str, ...]
    ) -> None:
        """Inside of another block it ended with that one."""
        async with AsyncExitStack() as stack:
            if around:
                await stack.enter_async_context(harness.inside(lock(KEY, prefix=PREFIX, expire=600, wait=0)))
            async with harness.inside(lock(list(around or (KEY,)), prefix=PREFIX, expire=600, wait=0)) as lease:
                watching = harness.unrelated(lambda: harness.lost(lease))

                async def waits() -> bool:
                    return bool(scope_of(lease)._callbacks)

                await harness.until(waits)
            ended = now()
            assert await watching.result() is False
            assert now() - ended < PATIENCE / 3, "it has slept on"
