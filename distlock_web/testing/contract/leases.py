"""A lease lives as long as it says: not shorter, not longer, and its holder knows when it ends (laws 2, 6 and 7)."""

from __future__ import annotations

import pytest

from distlock_web import ConfigurationError, LeaseLost, NotHeld
from distlock_web.core.runtime import now

from ..fault_injector import FaultInjector
from ..harness import Harness
from .base import KEY, NAME, PREFIX, Cases, case, needs, the_lock


class LeaseCases(Cases):
    @needs("waiting")
    @case
    async def test_a_dead_holders_lock_is_free_after_its_lease_and_not_before(self, harness: Harness) -> None:
        async def holder() -> float:
            before = now()
            await harness.acquire(the_lock(expire=self.ttl))  # and never gives it back
            return before

        taken = await harness.unrelated(holder).result()
        async with harness.inside(the_lock(wait=None)):
            # The store began the lease after `taken`, and answered before now.
            assert now() - taken >= self.ttl * 0.98

    @needs("waiting")
    @case
    async def test_the_holder_knows_of_its_end_before_another_can_begin(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock(expire=self.kept))
        assert lease.state == "held"

        async def next_one() -> None:
            await harness.acquire(the_lock(wait=None))
            assert lease.state == "lost"
            assert lease.reason == "expired"

        await harness.unrelated(next_one).result()
        with pytest.raises(LeaseLost) as caught:
            lease.raise_if_lost()
        assert caught.value.reason == "expired"
        assert NAME in str(caught.value)

    @case
    async def test_a_lease_never_promises_more_than_the_store_keeps(self, harness: Harness) -> None:
        async with harness.inside(the_lock(expire=20)) as lease:
            for _ in range(3):
                asked = now()
                promised = lease.remaining
                line = await harness.line(NAME)
                assert line is not None
                assert 0 < promised < 20
                # Counted from the same moment, or later: it may not be less, but for what a store's clock rounds.
                assert line.remaining + (now() - asked) + 0.05 > promised
                await harness.extend(lease)

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
    async def test_renewal_keeps_a_lease_and_ends_with_its_block(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        begun = now()
        async with harness.inside(the_lock(expire=self.kept, renew=True)) as lease:
            fence = lease.fence
            end = now() + 2 * self.kept
            while now() < end:
                assert lease.lost.is_set() is False
                line = await harness.line(NAME)
                assert line is not None
                assert line.fence == fence
                await harness.sleep(self.kept / 20)
        renewals = injector.calls.count("extend")
        # At a third of the lease; a busy machine may come late, and take long, but there is never a storm.
        assert 2 <= renewals <= (now() - begun) / (self.kept / 4) + 2
        await harness.sleep(self.kept / 2)
        assert injector.calls.count("extend") == renewals
        assert await harness.line(NAME) is None

    @case
    async def test_renew_for_bounds_the_renewal(self, harness: Harness) -> None:
        begun = now()
        with pytest.raises(LeaseLost) as caught:
            async with harness.inside(the_lock(expire=self.ttl, renew=True, renew_for=self.ttl)) as lease:
                assert await harness.lost(lease)
                assert now() - begun > self.ttl, "renewed at least once"
        assert caught.value.reason == "expired"

    @needs("waiting")
    @case
    async def test_hold_at_least_keeps_the_lock_after_success(self, harness: Harness) -> None:
        begun = now()
        async with harness.inside(the_lock(hold_at_least=self.kept)):
            pass
        line = await harness.line(NAME)
        assert line is not None
        assert line.state == "cooldown"
        async with harness.inside(the_lock(wait=None)):
            assert now() - begun >= self.kept * 0.98

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

    @needs("waiting")
    @case
    async def test_the_fence_grows_from_holder_to_holder(self, harness: Harness) -> None:
        fences: list[int] = []

        async def holder() -> None:
            async with harness.inside(the_lock(wait=None)) as lease:
                fences.append(lease.fence or 0)

        for holding in [harness.unrelated(holder) for _ in range(10)]:
            await holding.result()
        assert fences == sorted(set(fences))

    @case
    async def test_waiting_until_a_lease_is_lost_ends_when_it_is_given_back(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as lease:
            watching = harness.unrelated(lambda: harness.lost(lease))
        assert await watching.result() is False

    @case
    async def test_a_decorated_function_is_told_like_a_block(self, harness: Harness) -> None:
        async def body() -> str:
            await harness.sleep(seconds)
            return "done"

        seconds = self.ttl * 1.2
        with pytest.raises(LeaseLost):
            await harness.decorated(body, key=KEY, prefix=PREFIX, expire=self.ttl)()
        seconds = self.kept * 1.2
        assert await harness.decorated(body, key=KEY, prefix=PREFIX, expire=self.kept, renew=True)() == "done"
