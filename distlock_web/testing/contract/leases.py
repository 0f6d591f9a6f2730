"""A lease lives as long as it says, in any hands: not shorter, not longer, and is passed on (laws 2, 5, 6 and 7)."""

from __future__ import annotations

import pytest

from distlock_web import LeaseLost, NotHeld
from distlock_web.core.runtime import now

from ..fault_injector import FaultInjector
from ..harness import Harness
from .base import NAME, Cases, case, ending, ending_lease, needs, the_lock


class LeaseCases(Cases):
    @case
    async def test_a_dead_holders_lock_is_free_after_its_lease_and_not_before(self, harness: Harness) -> None:
        taken = now()
        await ending(harness, self.ttl)  # and never gives it back
        async with harness.inside(the_lock(wait=None)):
            # The store began the lease after `taken`, and answered before now.
            assert now() - taken >= self.ttl * 0.98

    @case
    async def test_the_holder_knows_of_its_end_before_another_can_begin(self, harness: Harness) -> None:
        lease = await ending_lease(harness, self.ttl)

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
                line = await harness.shown(NAME)
                assert 0 < promised < 20
                # Counted from the same moment, or later: it may not be less, but for what a store's clock rounds.
                assert line.remaining + (now() - asked) + 0.05 > promised
                await harness.extend(lease)

    @case
    async def test_renewal_keeps_a_lease_and_ends_with_its_block(self, harness: Harness) -> None:
        injector = FaultInjector(harness.store)
        begun = now()
        async with harness.inside(the_lock(expire=self.kept, renew=True)) as lease:
            fence = lease.fence
            end = now() + 2 * self.kept
            while now() < end:
                assert lease.lost.is_set() is False
                line = await harness.shown(NAME)
                assert line.fence == fence
                await harness.sleep(self.kept / 20)
        renewals = injector.calls.count("extend")
        # At a third of the lease; a busy machine may come late, and take long, but there is never a storm.
        assert 2 <= renewals <= (now() - begun) / (self.kept / 4) + 2
        await harness.sleep(self.kept / 2)
        assert injector.calls.count("extend") == renewals
        assert await harness.line(NAME) is None

    @case
    async def test_hold_at_least_keeps_the_lock_after_success(self, harness: Harness) -> None:
        begun = now()
        async with harness.inside(the_lock(hold_at_least=self.ttl)):
            pass
        async with harness.inside(the_lock(wait=None, hold_at_least=20)):
            assert now() - begun >= self.ttl * 0.98
        line = await harness.shown(NAME)
        assert line.state == "cooldown"

    @needs("transfer")
    @case
    async def test_a_ticket_that_comes_too_late_is_refused(self, harness: Harness) -> None:
        ticket = await harness.detach(await harness.acquire(the_lock()), transit=self.ttl)
        async with harness.inside(the_lock(wait=None)):
            with pytest.raises(NotHeld):
                await harness.attach(ticket)

    @needs("transfer")
    @case
    async def test_who_waits_is_served_after_the_receiver(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock())

        async def waiter() -> None:
            async with harness.inside(the_lock(wait=None)):
                pass

        actor = harness.unrelated(waiter)
        await harness.waiters(NAME, 1)
        attached = await harness.attach(await harness.detach(lease))
        assert attached.state == "held"
        await harness.release(attached)
        await actor.result()
