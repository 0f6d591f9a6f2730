"""The verbs of a port: each may be sent twice and answers the same, and obeys only the owner (laws 3 and 5)."""

from __future__ import annotations

from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.runtime import now

from ..colours import PATIENCE, World
from .base import NAME, Cases, case, claim


async def granted(port: Port, asked: Claim) -> Granted:
    answer = await port.take(asked, 0)
    assert isinstance(answer, Granted), answer
    return answer


class VerbCases(Cases):
    @case
    async def test_take_twice_is_one_lock(self, world: World) -> None:
        mine = claim()
        first = await granted(world.port, mine)
        second = await granted(world.port, mine)
        assert first.fence == second.fence
        assert isinstance(await world.port.take(claim(), 0), Busy)
        assert await world.port.release(mine) is None
        assert await world.line(NAME) is None

    @case
    async def test_take_without_waiting_leaves_nothing_in_the_queue(self, world: World) -> None:
        await granted(world.port, claim())
        busy = await world.port.take(claim(), 0)
        assert isinstance(busy, Busy)
        assert busy.pause > 0
        assert 0 < busy.remaining <= 30
        line = await world.line(NAME)
        assert line is not None
        assert line.waiters == 0

    @case
    async def test_join_twice_is_one_place(self, world: World) -> None:
        await granted(world.port, claim())
        waiting = claim()
        places = [await world.port.take(waiting, 10) for _ in range(2)]
        assert isinstance(places[0], Busy)
        assert isinstance(places[1], Busy)
        assert places[0].place == places[1].place
        line = await world.line(NAME)
        assert line is not None
        assert line.waiters == 1
        await world.port.withdraw(waiting)

    @case
    async def test_release_twice_is_no_loss_and_does_not_touch_the_successor(self, world: World) -> None:
        mine, successor = claim(), claim()
        await granted(world.port, mine)
        assert await world.port.release(mine) is None
        assert await world.port.release(mine) is None
        await granted(world.port, successor)
        assert await world.port.release(mine) is None
        line = await world.line(NAME)
        assert line is not None
        assert await world.port.extend([successor]) == [None]

    @case
    async def test_only_the_owner_releases_and_extends(self, world: World) -> None:
        mine, stranger = claim(), claim()
        await granted(world.port, mine)
        assert await world.port.release(stranger) == "taken"
        assert await world.port.extend([stranger]) == ["taken"]
        await world.port.withdraw(stranger)
        assert await world.port.detach(stranger, "x", 10) == "taken"
        assert await world.port.attach(stranger, "x") is None
        assert await world.port.extend([mine]) == [None]

    @case
    async def test_extend_twice_and_for_several_at_once(self, world: World) -> None:
        mine, gone, other = claim(), claim(), claim(name="test:other")
        await granted(world.port, mine)
        await granted(world.port, other)
        for _ in range(2):
            assert await world.port.extend([mine, gone, other]) == [None, "taken", None]

    @case
    async def test_extend_never_shortens(self, world: World) -> None:
        mine = claim(expire=30)
        await granted(world.port, mine)
        assert await world.port.extend([claim(mine.token, expire=1)]) == [None]
        line = await world.line(NAME)
        assert line is not None
        assert line.remaining > 10
        assert await world.port.extend([claim(mine.token, expire=300)]) == [None]
        line = await world.line(NAME)
        assert line is not None
        assert line.remaining > 100

    @case
    async def test_withdraw_twice_leaves_the_queue_or_gives_back(self, world: World) -> None:
        mine, waiting = claim(), claim()
        await granted(world.port, mine)
        await world.port.take(waiting, 10)
        for _ in range(2):
            await world.port.withdraw(waiting)
        line = await world.line(NAME)
        assert line is not None
        assert line.waiters == 0
        for _ in range(2):
            await world.port.withdraw(mine)
        assert await world.line(NAME) is None

    @case
    async def test_detach_and_attach_twice(self, world: World) -> None:
        mine, receiver = claim(), claim()
        fence = (await granted(world.port, mine)).fence
        for _ in range(2):
            assert await world.port.detach(mine, "transit-token", 10) is None
        assert await world.port.release(mine) is not None
        for _ in range(2):
            attached = await world.port.attach(receiver, "transit-token")
            assert attached is not None
            assert attached.fence == fence
        assert await world.port.attach(claim(), "transit-token") is None
        assert await world.port.release(receiver) is None

    @case
    async def test_release_says_what_has_happened_to_the_lease(self, world: World) -> None:
        mine = claim(expire=self.ttl)
        await granted(world.port, mine)
        await world.until_free(NAME)
        assert await world.port.release(mine) == "expired"
        assert await world.port.extend([mine]) == ["expired"]
        await granted(world.port, claim())
        assert await world.port.release(mine) == "taken"
        assert await world.port.extend([mine]) == ["taken"]

    @case
    async def test_revoke_frees_the_holder_of_this_fence_only(self, world: World) -> None:
        mine, successor = claim(), claim()
        fence = (await granted(world.port, mine)).fence
        assert fence is not None
        assert not await world.port.revoke(NAME, fence - 1)
        assert not await world.port.revoke("test:unknown", fence)
        assert await world.port.revoke(NAME, fence)
        assert not await world.port.revoke(NAME, fence)
        assert await world.port.extend([mine]) == ["revoked"]
        assert await world.port.release(mine) == "revoked"
        await granted(world.port, successor)
        assert await world.port.extend([mine]) == ["revoked"]
        assert await world.port.extend([successor]) == [None]

    @case
    async def test_the_fence_grows_through_release_expiry_and_revocation(self, world: World) -> None:
        fences: list[int] = []

        async def take(expire: float) -> Claim:
            mine = claim(expire=expire)
            fences.append((await granted(world.port, mine)).fence or 0)
            return mine

        for _ in range(20):
            await world.port.release(await take(30))
        await take(self.ttl)
        await world.until_free(NAME)
        await take(30)
        assert await world.port.revoke(NAME, fences[-1])
        await take(30)
        assert fences == sorted(set(fences))

    @case
    async def test_a_kept_lock_stays_taken_for_its_time(self, world: World) -> None:
        mine = claim()
        await granted(world.port, mine)
        for _ in range(2):
            assert await world.port.release(mine, self.ttl) is None
        line = await world.line(NAME)
        assert line is not None
        assert line.state == "kept"
        assert line.remaining <= self.ttl
        assert isinstance(await world.port.take(claim(), 0), Busy)
        await world.until_free(NAME)

    @case
    async def test_a_lock_handed_over_goes_on_when_its_new_owner_withdraws(self, world: World) -> None:
        mine, second, third = claim(), claim(), claim()
        await granted(world.port, mine)
        await world.port.take(second, 30)
        answer = await world.port.take(third, 30)
        await world.port.release(mine)
        line = await world.line(NAME)
        assert line is not None
        assert line.waiters == 1, "the head was taken out of the queue"
        await world.port.withdraw(second)
        while isinstance(answer, Busy):
            answer = await world.port.wait(third, answer, None)
        assert await world.port.release(third) is None
        assert await world.line(NAME) is None

    @case
    async def test_a_dead_waiter_does_not_block_those_behind_it(self, world: World) -> None:
        """It is handed the lock and never gives it back: that costs the others its lease, not their whole wait."""
        mine, dead, alive = claim(expire=self.ttl), claim(expire=self.ttl), claim()
        await granted(world.port, mine)
        await world.port.take(dead, None)
        answer = await world.port.take(alive, None)
        await world.port.release(mine)
        begun = now()
        while isinstance(answer, Busy):
            answer = await world.port.wait(alive, answer, None)
            assert now() - begun < PATIENCE
        assert await world.port.release(alive) is None
