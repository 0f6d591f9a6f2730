"""The verbs of a port: each may be sent twice and answers the same, and obeys only the owner (laws 3 and 5)."""

from __future__ import annotations

from contextvars import Context

from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.runtime import now

from ..harness import PATIENCE, Harness, ThreadActor
from .base import NAME, Cases, case, claim, ending, needs


async def granted(port: Port, asked: Claim) -> Granted:
    answer = await port.acquire(asked, 0)
    assert isinstance(answer, Granted), answer
    return answer


class VerbCases(Cases):
    @case
    async def test_take_twice_is_one_lock(self, harness: Harness) -> None:
        mine = claim()
        first = await granted(harness.port, mine)
        second = await granted(harness.port, mine)
        assert first.fence == second.fence
        busy = await harness.port.acquire(claim(), 0)
        assert isinstance(busy, Busy)
        assert busy.recheck_after > 0
        assert 0 < busy.remaining <= 30
        assert (await harness.shown(NAME)).waiters == 0, "who does not wait leaves nothing in the queue"
        assert await harness.port.release(mine) is None
        assert await harness.line(NAME) is None

    @needs("queue")
    @case
    async def test_join_twice_is_one_place(self, harness: Harness) -> None:
        mine, first, second = (claim(expire=300) for _ in range(3))
        await granted(harness.port, mine)
        for waiting in (first, second, first):
            answer = await harness.port.acquire(waiting, None)
            assert isinstance(answer, Busy)
        assert (await harness.shown(NAME)).waiters == 2
        await harness.port.release(mine)
        begun = now()
        while isinstance(answer, Busy):
            answer = await harness.port.wait(first, answer, PATIENCE)
            assert now() - begun < PATIENCE, "it had lost its place to the one behind it"
        assert isinstance(await harness.port.acquire(second, 0), Busy)
        for gone in (second, first):
            await harness.port.cancel(gone)
        assert await harness.line(NAME) is None

    @case
    async def test_release_twice_is_no_loss_and_does_not_touch_the_successor(self, harness: Harness) -> None:
        mine, successor = claim(), claim()
        await granted(harness.port, mine)
        assert await harness.port.release(mine) is None
        assert await harness.port.release(mine) is None
        await granted(harness.port, successor)
        assert await harness.port.release(mine) is None
        assert await harness.port.extend([successor]) == [None]

    @case
    async def test_extend_twice_and_for_several_at_once(self, harness: Harness) -> None:
        mine, gone, other = claim(), claim(), claim(name="test:other")
        await granted(harness.port, mine)
        await granted(harness.port, other)
        for _ in range(2):
            assert await harness.port.extend([mine, gone, other]) == [None, "taken", None]

    @case
    async def test_extend_never_shortens(self, harness: Harness) -> None:
        mine = claim(expire=30)
        await granted(harness.port, mine)
        assert await harness.port.extend([claim(mine.token, expire=1)]) == [None]
        line = await harness.shown(NAME)
        assert line.remaining > 10
        assert await harness.port.extend([claim(mine.token, expire=300)]) == [None]
        line = await harness.shown(NAME)
        assert line.remaining > 100

    @case
    async def test_a_renewal_that_crosses_an_extension_does_not_shorten_it(self, harness: Harness) -> None:
        """Both know of the lease as it was before. Whichever the store carries out last, the longer one stays."""

        async def renew() -> object:
            return await harness.store.renewal_port().extend([mine], PATIENCE)

        for _ in range(10):
            mine = claim(expire=5)
            await granted(harness.port, mine)
            renewals = [ThreadActor(renew, Context()) for _ in range(4)]
            assert await harness.port.extend([mine._replace(expire=300)]) == [None]
            assert [await renewal.result() for renewal in renewals] == [[None]] * 4
            assert (await harness.shown(NAME)).remaining > 100
            assert await harness.port.release(mine) is None

    @case
    async def test_cancel_twice_leaves_the_queue_or_gives_back(self, harness: Harness) -> None:
        mine, waiting = claim(), claim()
        await granted(harness.port, mine)
        await harness.port.acquire(waiting, 10)
        for _ in range(2):
            await harness.port.cancel(waiting)
        line = await harness.shown(NAME)
        assert line.waiters == 0
        for _ in range(2):
            await harness.port.cancel(mine)
        assert await harness.line(NAME) is None

    @needs("transfer")
    @case
    async def test_detach_and_attach_twice(self, harness: Harness) -> None:
        mine, receiver = claim(), claim(expire=10)
        fence = (await granted(harness.port, mine)).fence
        for _ in range(2):
            assert await harness.port.detach(mine, "transit-token", 300) is None
        assert (await harness.shown(NAME)).state == "transit"
        assert await harness.port.release(mine) is not None
        for _ in range(2):
            attached = await harness.port.attach(receiver, "transit-token")
            assert attached is not None
            assert attached.fence == fence
        assert (await harness.shown(NAME)).remaining <= 10, "the receiver's lease, and not what the way was given"
        assert await harness.port.attach(claim(), "transit-token") is None
        assert await harness.port.release(receiver) is None

    @case
    async def test_release_says_what_has_happened_to_the_lease(self, harness: Harness) -> None:
        mine, _ = await ending(harness, self.ttl)
        await harness.until_free(NAME)
        assert await harness.port.release(mine) == "expired"
        assert await harness.port.extend([mine]) == ["expired"]
        await granted(harness.port, claim())
        assert await harness.port.release(mine) == "taken"
        assert await harness.port.extend([mine]) == ["taken"]

    @case
    async def test_revoke_frees_the_holder_of_this_fence_only(self, harness: Harness) -> None:
        mine, successor = claim(), claim()
        fence = (await granted(harness.port, mine)).fence
        assert fence is not None
        assert not await harness.port.revoke(NAME, fence - 1)
        assert not await harness.port.revoke("test:unknown", fence)
        assert await harness.port.revoke(NAME, fence)
        assert not await harness.port.revoke(NAME, fence)
        assert await harness.port.extend([mine]) == ["revoked"]
        assert await harness.port.release(mine) == "revoked"
        await granted(harness.port, successor)
        assert await harness.port.extend([mine]) == ["revoked"]
        assert await harness.port.extend([successor]) == [None]

    @case
    async def test_what_a_page_of_locks_asks_every_store_answers(self, harness: Harness) -> None:
        """Also one that cannot tell, and says so: by what its port inherits."""
        assert Port in type(harness.port).__mro__, "a port has to inherit distlock_web.core.backend.Port"
        mine = claim()
        await granted(harness.port, mine)
        assert await harness.port.names(1) in (None, (1, [NAME]))
        assert await harness.port.waiters(NAME, 1) in (None, [])
        assert await harness.port.done(1) == []
        assert await harness.port.forget(NAME, 1) is False
        await harness.port.release(mine)

    @case
    async def test_the_fence_grows_through_release_expiry_and_revocation(self, harness: Harness) -> None:
        fences: list[int] = []

        async def acquired() -> Claim:
            mine = claim()
            fences.append((await granted(harness.port, mine)).fence or 0)
            return mine

        for _ in range(20):
            await harness.port.release(await acquired())
        _, ended = await ending(harness, self.ttl)
        fences.append(ended.fence or 0)
        await harness.until_free(NAME)
        await acquired()
        assert await harness.port.revoke(NAME, fences[-1])
        await acquired()
        assert fences == sorted(set(fences))

    @case
    async def test_a_lock_in_cooldown_is_not_free_for_its_time(self, harness: Harness) -> None:
        first, mine = claim(), claim()
        await granted(harness.port, first)
        assert await harness.port.release(first, self.ttl) is None
        await harness.until_free(NAME)
        await granted(harness.port, mine)
        for _ in range(2):
            assert await harness.port.release(mine, 20) is None
        line = await harness.shown(NAME)
        assert line.state == "cooldown"
        assert line.remaining <= 20
        assert isinstance(await harness.port.acquire(claim(), 0), Busy)

    @case
    async def test_a_copy_that_comes_after_the_lease_finds_its_cooldown(self, harness: Harness) -> None:
        """The engine takes another answer for a loss: the lock would be kept, had the first copy been done."""
        claims = list[Claim]()

        async def released() -> bool:
            mine, _ = await ending(harness, self.kept)
            claims.append(mine)
            return await harness.port.release(mine, 20) is None  # in time: else once more

        await harness.until(released)
        await harness.sleep(self.kept)
        assert await harness.port.release(claims[-1], 20) is None
        assert (await harness.shown(NAME)).state == "cooldown"

    @needs("queue")
    @case
    async def test_a_lock_handed_over_goes_on_when_its_new_owner_cancels(self, harness: Harness) -> None:
        mine, second, third = claim(), claim(), claim()
        await granted(harness.port, mine)
        await harness.port.acquire(second, 30)
        answer = await harness.port.acquire(third, 30)
        await harness.port.release(mine)
        line = await harness.shown(NAME)
        assert line.waiters == 1, "the head was taken out of the queue"
        await harness.port.cancel(second)
        while isinstance(answer, Busy):
            answer = await harness.port.wait(third, answer, None)
        assert await harness.port.release(third) is None
        assert await harness.line(NAME) is None

    @needs("queue")
    @case
    async def test_a_dead_waiter_does_not_block_those_behind_it(self, harness: Harness) -> None:
        """It is handed the lock and never gives it back: that costs the others its lease, not their whole wait."""
        (mine, _), dead, alive = await ending(harness, self.ttl), claim(expire=self.ttl), claim()
        await harness.port.acquire(dead, None)
        answer = await harness.port.acquire(alive, None)
        await harness.port.release(mine)
        begun = now()
        while isinstance(answer, Busy):
            answer = await harness.port.wait(alive, answer, None)
            assert now() - begun < PATIENCE
        assert await harness.port.release(alive) is None
