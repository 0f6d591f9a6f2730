"""A lock passed on to another task or process: detach gives a string, attach takes it on (law 2)."""

from __future__ import annotations

import base64
import json

import pytest

from distlock_web import ConfigurationError, LeaseLost, NotHeld, lock
from distlock_web.testing.contract.base import PREFIX, Cases, case, needs, the_lock
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import Harness


class TransferCases(Cases):
    @needs("transfer")
    @case
    async def test_a_ticket_is_good_for_one_use(self, harness: Harness) -> None:
        ticket = await harness.detach(await harness.acquire(the_lock()))
        lease = await harness.attach(ticket)
        with pytest.raises(NotHeld):
            await harness.attach(ticket)
        lease.raise_if_lost()
        await harness.release(lease)
        with pytest.raises(NotHeld):
            await harness.attach(ticket)

    @needs("transfer")
    @case
    async def test_times_shorter_than_the_store_can_express_are_refused(self, harness: Harness) -> None:
        """Rounded to nothing, one of them made a lock that never ended."""
        too_short = (0.000_001, harness.store.backend.capabilities.min_expire / 2)
        lease = await harness.acquire(the_lock())
        for seconds in too_short:
            with pytest.raises(ConfigurationError, match="transit"):
                await harness.detach(lease, transit=seconds)
        ticket = await harness.detach(lease)
        for seconds in too_short:
            with pytest.raises(ConfigurationError, match="expire"):
                await harness.attach(ticket, expire=seconds)
        await harness.release(await harness.attach(ticket))

    @needs("transfer")
    @case
    async def test_an_altered_ticket_proves_nothing(self, harness: Harness) -> None:
        ticket = await harness.detach(await harness.acquire(the_lock()))
        fields = json.loads(base64.urlsafe_b64decode(ticket))
        fields[2] = 3600.0  # a longer lease than was given
        longer = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
        for altered in (longer, ticket[:-8], ticket[8:], "", "a string", "é", ticket + "A"):
            with pytest.raises(NotHeld):
                await harness.attach(altered)
        await harness.release(await harness.attach(ticket))

    @needs("transfer")
    @case
    async def test_several_locks_are_passed_on_together(self, harness: Harness) -> None:
        lease = await harness.acquire(lock(["a", "b"], prefix=PREFIX))
        attached = await harness.attach(await harness.detach(lease))
        assert attached.fences == lease.fences
        await harness.release(attached)
        assert await harness.port.inspect() == []

    @needs("transfer")
    @case
    async def test_after_the_hand_over_the_old_lease_is_over(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock(renew=True))
        ticket = await harness.detach(lease)
        assert lease.state == "released"
        for verb in (harness.release, harness.extend, harness.detach):
            with pytest.raises(NotHeld):
                await verb(lease)
        await harness.release(await harness.attach(ticket))

    @needs("transfer")
    @case
    async def test_a_nested_hold_cannot_be_passed_on(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as outer:
            async with harness.inside(the_lock()) as inner:
                for lease in (outer, inner):
                    with pytest.raises(ConfigurationError, match="outermost"):
                        await harness.detach(lease)
            await harness.extend(outer)

    @needs("transfer")
    @case
    async def test_a_lost_lease_cannot_be_passed_on(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock(expire=self.ttl))
        assert await harness.lost(lease)
        with pytest.raises(LeaseLost):
            await harness.detach(lease)

    @needs("transfer")
    @case
    async def test_answers_lost_on_the_way_change_nothing(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock())
        injector = FaultInjector(harness.store)
        injector.lose("detach", "answer")
        ticket = await harness.detach(lease)
        injector.lose("attach", "answer")
        attached = await harness.attach(ticket)
        assert injector.calls == ["detach", "detach", "attach", "attach"]
        await harness.extend(attached)
        await harness.release(attached)
