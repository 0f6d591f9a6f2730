"""Who takes a lock, or several at once, and under which name (laws 1, 4, 10, 11)."""

from __future__ import annotations

from functools import partial

import pytest

from distlock_web import ConfigurationError, LockBusy, lock, request_scope
from distlock_web.core.runtime import now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import NAME, PREFIX, Cases, case, the_lock
from distlock_web.testing.harness import Harness


class TakingCases(Cases):
    @case
    async def test_one_lock_object_serves_many_at_once(self, harness: Harness) -> None:
        """Who leaves gives back the own lease, also one that was given back before its block ended."""
        shared = the_lock(wait=None)
        given_back, first_may_leave, second_entered = harness.event(), harness.event(), harness.event()

        async def first() -> None:
            async with harness.inside(shared) as lease:
                await harness.release(lease)
                given_back.set()
                await first_may_leave.wait()

        async def second() -> None:
            await given_back.wait()
            async with harness.inside(shared) as lease:
                second_entered.set()
                await actors[0].result()
                await harness.extend(lease)  # raises if the first one's leaving took it away

        actors = [harness.unrelated(first)]
        actors.append(harness.unrelated(second))
        await second_entered.wait()
        first_may_leave.set()
        await actors[1].result()
        assert await harness.line(NAME) is None

    @case
    async def test_two_requests_with_the_same_id_exclude_each_other(self, harness: Harness) -> None:
        async def twin() -> bool:
            with request_scope("the-same-id"):
                return await harness.try_acquire(the_lock()) is not None

        assert await harness.unrelated(twin).result()
        assert not await harness.unrelated(twin).result()

    @case
    async def test_every_acquisition_has_a_token_of_its_own(self, harness: Harness) -> None:
        tokens: list[str] = []
        for request in ("one", "the-same-id", "the-same-id"):
            with request_scope(request):
                for _ in range(20):
                    async with harness.inside(the_lock()) as lease:
                        tokens.append(scope_of(lease).acquired[0].claim.token)
        assert len(set(tokens)) == 60
        # The process that waits; the request, 96 bits that nobody can guess; and a number.
        assert all(len(token) == 52 for token in tokens)
        assert len({token[:16] for token in tokens}) == 1
        assert [len({token[16:40] for token in tokens[first : first + 20]}) for first in (0, 20, 40)] == [1, 1, 1]
        assert len({token[16:40] for token in tokens}) == 3

    @case
    async def test_a_lease_shorter_than_the_store_can_express_is_refused(self, harness: Harness) -> None:
        for expire in (0.000_001, harness.store.backend.capabilities.min_expire / 2):
            with pytest.raises(ConfigurationError, match="expire"):
                await harness.acquire(the_lock(expire=expire))

    @case
    async def test_several_keys_are_taken_all_or_none(self, harness: Harness) -> None:
        async with harness.inside(lock("b", prefix=PREFIX)):

            async def second() -> None:
                with pytest.raises(LockBusy) as caught:
                    await harness.acquire(lock(["c", "a", "b"], prefix=PREFIX, wait=0))
                assert caught.value.name == "test:b"

            await harness.unrelated(second).result()
            assert [line.name for line in await harness.port.inspect()] == ["test:b"]
        async with harness.inside(lock(["c", "a", "b", "a"], prefix=PREFIX, wait=0)) as lease:
            assert lease.names == ("test:a", "test:b", "test:c")
            assert set(lease.fences) == {"test:a", "test:b", "test:c"}
        assert await harness.port.inspect() == []

    @case
    async def test_several_keys_in_opposite_order_do_not_deadlock(self, harness: Harness) -> None:
        count = 0

        async def transfer(*keys: str) -> None:
            nonlocal count
            for _ in range(10):
                async with harness.inside(lock(keys, prefix=PREFIX, wait=None)):
                    seen = count
                    await harness.sleep(0)
                    count = seen + 1

        actors = [harness.unrelated(partial(transfer, *keys)) for keys in ("ab", "ba", "ab", "ba")]
        for actor in actors:
            await actor.result()
        assert count == 40

    @case
    async def test_keys_held_already_are_kept_while_a_further_one_is_awaited(self, harness: Harness) -> None:
        holder = await harness.acquire(lock("b", prefix=PREFIX, expire=300))

        async def both() -> None:
            async with harness.inside(lock(["a", "b"], prefix=PREFIX, expire=self.kept, wait=None)) as lease:
                lease.raise_if_lost()

        actor = harness.unrelated(both)
        await harness.waiters("test:b", 1)
        end = now() + 1.5 * self.kept
        while now() < end:
            assert await harness.line("test:a") is not None
            await harness.sleep(self.kept / 16)
        await harness.release(holder)
        await actor.result()
