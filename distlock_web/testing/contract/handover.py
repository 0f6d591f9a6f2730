"""A lock passed on to another task or process: detach gives a string, attach takes it on (law 2)."""

from __future__ import annotations

import base64
import json

import pytest

from distlock_web import ConfigurationError, LeaseLost, NotHeld, lock

from ..colours import World
from ..tap import Tap
from .base import NAME, PREFIX, Cases, case, the_lock


class HandoverCases(Cases):
    @case
    async def test_the_receiver_goes_on_under_the_same_lock_and_fence(self, world: World) -> None:
        async with world.inside(the_lock()) as lease:
            ticket = await world.detach(lease)
        line = await world.line(NAME)
        assert line is not None, "the end of the block did not free it"
        assert line.state == "transit"

        async def receiver() -> None:
            async with world.inside(await world.attach(ticket)) as mine:
                assert mine.fence == lease.fence
                assert mine.names == lease.names
                line = await world.line(NAME)
                assert line is not None
                assert line.state == "held"
                async with world.inside(the_lock()):  # it counts as inside
                    pass

        await world.stranger(receiver).result()
        assert await world.line(NAME) is None

    @case
    async def test_nobody_else_gets_in_while_it_is_on_its_way(self, world: World) -> None:
        ticket = await world.detach(await world.acquire(the_lock()))
        assert await world.try_acquire(the_lock()) is None
        await world.release(await world.attach(ticket))

    @case
    async def test_a_ticket_is_good_for_one_use(self, world: World) -> None:
        ticket = await world.detach(await world.acquire(the_lock()))
        lease = await world.attach(ticket)
        with pytest.raises(NotHeld):
            await world.attach(ticket)
        lease.raise_if_lost()
        await world.release(lease)
        with pytest.raises(NotHeld):
            await world.attach(ticket)

    @case
    async def test_a_ticket_that_comes_too_late_is_refused(self, world: World) -> None:
        ticket = await world.detach(await world.acquire(the_lock()), transit=self.ttl)
        async with world.inside(the_lock(wait=None)):
            with pytest.raises(NotHeld):
                await world.attach(ticket)

    @case
    async def test_an_altered_ticket_proves_nothing(self, world: World) -> None:
        ticket = await world.detach(await world.acquire(the_lock()))
        fields = json.loads(base64.urlsafe_b64decode(ticket))
        fields[2] = 3600.0  # a longer lease than was given
        longer = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
        for altered in (longer, ticket[:-8], ticket[8:], "", "a string", "é", ticket + "A"):
            with pytest.raises(NotHeld):
                await world.attach(altered)
        await world.release(await world.attach(ticket))

    @case
    async def test_several_locks_are_passed_on_together(self, world: World) -> None:
        lease = await world.acquire(lock(["a", "b"], prefix=PREFIX))
        attached = await world.attach(await world.detach(lease))
        assert attached.fences == lease.fences
        await world.release(attached)
        assert await world.port.inspect() == []

    @case
    async def test_after_the_hand_over_the_old_lease_is_over(self, world: World) -> None:
        lease = await world.acquire(the_lock(expire=self.ttl, renew=True))
        ticket = await world.detach(lease)
        assert lease.state == "released"
        for verb in (world.release, world.extend, world.detach):
            with pytest.raises(NotHeld):
                await verb(lease)
        await world.release(await world.attach(ticket))

    @case
    async def test_a_nested_hold_cannot_be_passed_on(self, world: World) -> None:
        async with world.inside(the_lock()) as outer:
            async with world.inside(the_lock()) as inner:
                for lease in (outer, inner):
                    with pytest.raises(ConfigurationError, match="outermost"):
                        await world.detach(lease)
            await world.extend(outer)

    @case
    async def test_a_lost_lease_cannot_be_passed_on(self, world: World) -> None:
        lease = await world.acquire(the_lock(expire=self.ttl))
        assert await world.lost(lease)
        with pytest.raises(LeaseLost):
            await world.detach(lease)

    @case
    async def test_answers_lost_on_the_way_change_nothing(self, world: World) -> None:
        lease = await world.acquire(the_lock())
        tap = Tap(world.store)
        tap.lose("detach", "answer")
        ticket = await world.detach(lease)
        tap.lose("attach", "answer")
        attached = await world.attach(ticket)
        assert tap.calls == ["detach", "detach", "attach", "attach"]
        await world.extend(attached)
        await world.release(attached)

    @case
    async def test_who_waits_is_served_after_the_receiver(self, world: World) -> None:
        lease = await world.acquire(the_lock())

        async def waiter() -> None:
            async with world.inside(the_lock(wait=None)):
                pass

        actor = world.stranger(waiter)
        await world.waiters(NAME, 1)
        attached = await world.attach(await world.detach(lease))
        assert attached.state == "held"
        await world.release(attached)
        await actor.result()
