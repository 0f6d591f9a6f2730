"""At most so many at once, readers beside readers, and a writer alone: by one mechanism (``limit``, ``shared``)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from distlock_web import ConfigurationError, Lease, LeaseLost, LockBusy, NotHeld
from distlock_web.core.backend import SHARED, Busy, Claim, Granted
from distlock_web.core.runtime import now

from ..harness import Harness
from .base import NAME, Cases, case, claim, needs, the_lock


def place(limit: int = 2, expire: float = 30.0) -> Claim:
    """A claim for the port itself, of one that lets so many in."""
    alone = claim(expire=expire)
    return alone._replace(token=alone.token.limited(limit))


class SharingCases(Cases):
    @needs("sharing")
    @case
    async def test_never_more_hold_it_than_its_limit(self, harness: Harness) -> None:
        inside = most = done = 0

        async def full() -> bool:
            return most >= 3

        async def work() -> None:
            nonlocal inside, most, done
            for _ in range(5):
                async with harness.inside(the_lock(limit=3, wait=None)):
                    inside += 1
                    most = max(most, inside)
                    await harness.until(full)
                    await harness.sleep(0.002)
                    inside -= 1
                    done += 1

        for actor in [harness.unrelated(work) for _ in range(8)]:
            await actor.result()
        assert (most, done) == (3, 40)
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_a_writer_is_alone_and_readers_are_not(self, harness: Harness) -> None:
        readers = writers = most = 0

        async def together() -> bool:
            return most == 4

        async def read() -> None:
            nonlocal readers, most
            for _ in range(6):
                async with harness.inside(the_lock(shared=True, wait=None)):
                    readers += 1
                    most = max(most, readers)
                    assert writers == 0
                    await harness.until(together)
                    await harness.sleep(0.002)
                    readers -= 1

        async def write() -> None:
            nonlocal writers
            for _ in range(6):
                async with harness.inside(the_lock(wait=None)):
                    writers += 1
                    assert (readers, writers) == (0, 1)
                    await harness.sleep(0.002)
                    writers -= 1

        actors = [harness.unrelated(read) for _ in range(4)]
        await harness.until(together)
        for actor in [*actors, harness.unrelated(write), harness.unrelated(write)]:
            await actor.result()
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_each_place_has_a_lease_and_a_fence_of_its_own(self, harness: Harness) -> None:
        """What each verb does is done to one of the holders, also where it is sent twice, or late."""
        port, first, second, third = harness.port, place(), place(), place()
        granted = await port.acquire(first, 0)
        other = await port.acquire(second, 0)
        assert isinstance(granted, Granted)
        assert isinstance(other, Granted)
        again = await port.acquire(first, 0)
        assert isinstance(again, Granted)
        assert again.fence == granted.fence
        assert (other.fence or 0) > (granted.fence or 0)
        assert isinstance(await port.acquire(third, 0), Busy)
        kept, none, also_kept = await port.extend([first, third, second])
        assert (kept, also_kept) == (None, None)
        assert none in ("expired", "taken"), "it never had a place"
        assert await port.release(third) in ("expired", "taken")
        assert await port.release(first) is None
        assert await port.release(first) is None
        assert await port.extend([first, second]) == ["expired", None]
        last = await port.acquire(third, 0)
        assert isinstance(last, Granted)
        assert (last.fence or 0) > (other.fence or 0)
        assert await port.release(first) is None, "a copy that comes late"
        await port.cancel(first)
        assert [line.fence for line in await port.inspect([NAME])] == [other.fence, last.fence]
        await port.cancel(second)
        await port.cancel(second)
        assert await port.release(third) is None
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_one_that_dies_frees_its_place_after_its_own_lease(self, harness: Harness) -> None:
        begun = now()
        await harness.port.acquire(place(expire=self.ttl), 0)  # and never gives it back
        await harness.port.acquire(place(expire=300), 0)
        async with harness.inside(the_lock(limit=2, wait=None, expire=60)):
            assert now() - begun >= self.ttl * 0.98
            assert {line.holders for line in await harness.port.inspect([NAME])} == {2}

    @needs("sharing", "queue")
    @case
    async def test_a_waiting_writer_stops_later_readers_which_then_enter_together(self, harness: Harness) -> None:
        order: list[str] = []
        together = harness.event()

        async def write() -> None:
            async with harness.inside(the_lock(wait=None, expire=300)):
                order.append("writer")

        async def read() -> None:
            async with harness.inside(the_lock(shared=True, wait=None, expire=300)):
                order.append("reader")
                if order.count("reader") == 3:
                    together.set()
                await together.wait()

        reader = await harness.acquire(the_lock(shared=True, expire=300))
        actors = [harness.unrelated(write)]
        await harness.waiters(NAME, 1)
        assert isinstance(await harness.port.acquire(place(SHARED), 0), Busy), "the writer is in front"
        for number in range(3):
            actors.append(harness.unrelated(read))
            await harness.waiters(NAME, number + 2)
        await harness.release(reader)
        for actor in actors:
            await actor.result()
        assert order == ["writer", "reader", "reader", "reader"]
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_readers_behind_a_writer_that_gives_up_enter(self, harness: Harness) -> None:
        async def give_up() -> None:
            with pytest.raises(LockBusy):
                await harness.acquire(the_lock(wait=1.0, expire=300))

        async def read() -> None:
            async with harness.inside(the_lock(shared=True, wait=None, expire=300)):
                pass

        async with harness.inside(the_lock(shared=True, expire=300)):
            writer = harness.unrelated(give_up)
            await harness.waiters(NAME, 1)
            reader = harness.unrelated(read)
            await writer.result()
            await reader.result()  # gives up long before a lease is over
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_a_writers_fence_exceeds_that_of_every_reader_before(self, harness: Harness) -> None:
        fences: list[int] = []
        for _ in range(3):
            leases = [await harness.unrelated(partial(_taken, harness)).result() for _ in range(4)]
            fences += [lease.fence or 0 for lease in leases]
            for lease in leases:
                await harness.release(lease)
            async with harness.inside(the_lock()) as lease:
                fences.append(lease.fence or 0)
        assert fences == sorted(set(fences))

    @needs("sharing")
    @case
    async def test_of_several_limits_the_smallest_counts(self, harness: Harness) -> None:
        port = harness.port
        old, new = [place(3) for _ in range(3)], [place(2) for _ in range(2)]
        for one in old:
            assert isinstance(await port.acquire(one, 0), Granted)
        assert isinstance(await port.acquire(new[0], 0), Busy)
        await port.release(old[0])
        assert isinstance(await port.acquire(new[0], 0), Busy)
        await port.release(old[1])
        assert isinstance(await port.acquire(new[0], 0), Granted)
        assert isinstance(await port.acquire(place(3), 0), Busy), "the smaller one has come in"
        assert {(line.holders, line.limit) for line in await port.inspect([NAME])} == {(2, 2)}
        await port.release(new[0])
        assert isinstance(await port.acquire(place(3), 0), Granted)

    @pytest.mark.parametrize(("inside", "comes"), [(SHARED, 9), (9, SHARED)])
    @needs("sharing")
    @case
    async def test_readers_and_those_with_a_limit_exclude_each_other(
        self, harness: Harness, inside: int, comes: int
    ) -> None:
        """One with ``limit=9`` was let in beside readers, as if it were one of them."""
        port, first, second, other = harness.port, place(inside), place(inside, expire=300), place(comes)
        for one in (first, second):
            assert isinstance(await port.acquire(one, 0), Granted)
        busy = await port.acquire(other, 0)
        assert isinstance(busy, Busy)
        assert busy.remaining > 40, "until the last of them has gone, and not the first"
        assert isinstance(await port.acquire(place(inside), 0), Granted), "their like come in"
        await port.release(first)
        assert isinstance(await port.acquire(other, 0), Busy)

    @pytest.mark.parametrize(("inside", "comes"), [(SHARED, 9), (9, SHARED)])
    @needs("sharing")
    @case
    async def test_and_wait_for_the_last_of_the_others(self, harness: Harness, inside: int, comes: int) -> None:
        holders, entered = [place(inside, expire=300) for _ in range(2)], 0
        for one in holders:
            assert isinstance(await harness.port.acquire(one, 0), Granted)

        async def come() -> None:
            nonlocal entered
            options: dict[str, Any] = {"shared": True} if comes == SHARED else {"limit": comes}
            async with harness.inside(the_lock(wait=None, expire=300, **options)):
                entered += 1
                await harness.until(lambda: _true(entered == 2))

        coming = [harness.unrelated(come) for _ in range(2)]
        await harness.waiters(NAME, 2)
        await harness.port.release(holders[0])
        assert not entered
        await harness.port.release(holders[1])
        for actor in coming:
            await actor.result()
        assert await _is_free(harness)

    @pytest.mark.parametrize(
        ("outer", "inner", "wants"),
        [
            ({"shared": True}, {"limit": 9}, "at most 9 holders"),
            ({"limit": 3}, {"shared": True}, "readers only"),
            ({"limit": 3}, {"limit": 2}, "at most 2 holders"),
            ({"limit": 3}, {}, "to be alone"),
        ],
    )
    @needs("sharing")
    @case
    async def test_a_block_inside_that_would_wait_for_the_one_around_it_is_refused(
        self, harness: Harness, outer: dict[str, Any], inner: dict[str, Any], wants: str
    ) -> None:
        async with harness.inside(the_lock(**outer)):
            with pytest.raises(ConfigurationError, match=f"wants {wants}: it would wait for itself"):
                await harness.acquire(the_lock(wait=None, **inner))

    @needs("sharing")
    @case
    async def test_a_block_inside_enters_with_no_second_place(self, harness: Harness) -> None:
        async with harness.inside(the_lock(limit=2)), harness.inside(the_lock(limit=2)) as inner:
            assert inner.depth == 2
            assert [line.holders for line in await harness.port.inspect([NAME])] == [1]
        async with harness.inside(the_lock()), harness.inside(the_lock(shared=True)) as inner:
            assert inner.depth == 2
        async with harness.inside(the_lock(shared=True)):
            with pytest.raises(ConfigurationError, match="wants to be alone: it would wait for itself"):
                await harness.acquire(the_lock(wait=None))

            async def read() -> None:
                async with harness.inside(the_lock(shared=True, wait=None)):
                    met.append(1)
                    await harness.until(lambda: _true(len(met) == 2))

            met: list[int] = []
            for sibling in [harness.sibling(read) for _ in range(2)]:
                await sibling.result()
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_each_holder_has_a_line_and_one_can_be_released_by_force(self, harness: Harness) -> None:
        leases = [await harness.unrelated(partial(_taken, harness)).result() for _ in range(3)]
        lines = await harness.port.inspect([NAME])
        assert {(line.name, line.holders, line.limit, line.state) for line in lines} == {(NAME, 3, SHARED, "held")}
        assert {line.fence for line in lines} == {lease.fence for lease in leases}
        assert await harness.port.names() in (None, (1, [NAME]))
        assert not await harness.port.revoke(NAME, 0), "it has no fence of its own"
        assert await harness.port.revoke(NAME, leases[1].fence or 0)
        assert not await harness.port.revoke(NAME, leases[1].fence or 0)
        with pytest.raises(LeaseLost) as caught:
            await harness.extend(leases[1])
        assert caught.value.reason == "revoked"
        assert [line.holders for line in await harness.port.inspect([NAME])] == [2, 2]
        await harness.release(leases[0])
        await harness.release(leases[2])
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_a_place_is_kept_after_success_as_long_as_hold_at_least_says(self, harness: Harness) -> None:
        async with harness.inside(the_lock(limit=2, hold_at_least=30)):
            pass
        async with harness.inside(the_lock(limit=2)):
            assert sorted(line.state for line in await harness.port.inspect([NAME])) == ["cooldown", "held"]
            assert isinstance(await harness.port.acquire(place(), 0), Busy)

    @needs("sharing")
    @pytest.mark.parametrize("limit", [2, 3])
    @case
    async def test_whoever_may_enter_sooner_than_it_knew_is_told(self, harness: Harness, limit: int) -> None:
        """Two leases are long. One of them ends, now or after ``hold_at_least``: sooner than the waiter wakes."""
        port = harness.port
        first_lease = 4 * self.ttl if limit == 2 else 30
        ending, long, short = place(3, expire=300), place(3, expire=300), place(3, expire=first_lease)
        for one in (ending, long, short):
            assert isinstance(await port.acquire(one, 0), Granted)
        if limit == 3:
            await port.extend([short._replace(expire=300)])

        async def work() -> None:
            async with harness.inside(the_lock(limit=limit, wait=None, expire=300)):
                pass

        waiting = harness.unrelated(work)
        await harness.waiters(NAME, 1)
        begun = now()
        await port.release(ending, 0.0 if limit == 2 else self.ttl)
        await waiting.result()
        assert now() - begun < 100
        await port.release(long)
        await port.release(short)
        assert await _is_free(harness)

    @needs("sharing", "transfer")
    @case
    async def test_a_lease_among_several_is_not_handed_over(self, harness: Harness) -> None:
        lease = await harness.acquire(the_lock(shared=True))
        with pytest.raises(ConfigurationError, match="cannot be handed over"):
            await harness.detach(lease)
        await harness.extend(lease)
        await harness.release(lease)
        with pytest.raises(NotHeld):
            await harness.release(lease)

    @needs("sharing")
    @case
    async def test_a_place_that_is_renewed_stays(self, harness: Harness) -> None:
        async with harness.inside(the_lock(limit=2, expire=self.kept, renew=True)) as lease:
            await harness.port.acquire(place(expire=self.ttl), 0)
            await harness.sleep(2 * self.kept)
            lease.raise_if_lost()
            assert [line.fence for line in await harness.port.inspect([NAME])] == [lease.fence]

    @needs("sharing")
    @pytest.mark.parametrize(("limits", "next_limit"), [((1,), 2), ((2, 2), 1)])
    @pytest.mark.parametrize("waits", [False, True])
    @case
    async def test_whoever_was_released_by_force_is_told_so_whoever_comes_next(
        self, harness: Harness, limits: tuple[int, ...], next_limit: int, waits: bool
    ) -> None:
        """They were told that their leases had expired, or that they had been taken."""
        port, revoked, fences = harness.port, [place(limit) if limit > 1 else claim() for limit in limits], []
        for each in revoked:
            granted = await port.acquire(each, 0)
            assert isinstance(granted, Granted)
            fences.append(granted.fence or 0)
        entered, told = harness.event(), harness.event()

        async def enter() -> None:
            async with harness.inside(the_lock(limit=next_limit, wait=None, expire=300)):
                entered.set()
                await told.wait()

        following = harness.unrelated(enter) if waits else None
        if following is not None:
            await harness.waiters(NAME, 1)
        for fence in fences:
            assert await port.revoke(NAME, fence)
        following = following or harness.unrelated(enter)
        await entered.wait()
        try:
            assert await port.extend(revoked) == ["revoked"] * len(revoked)
            assert [await port.release(each) for each in revoked] == ["revoked"] * len(revoked)
        finally:
            told.set()
            await following.result()
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_so_is_one_of_several_when_the_last_of_the_others_has_gone(self, harness: Harness) -> None:
        port, revoked, other, following = harness.port, place(), place(), claim()
        granted = await port.acquire(revoked, 0)
        assert isinstance(granted, Granted)
        await port.acquire(other, 0)
        await port.acquire(following, None)
        assert await port.revoke(NAME, granted.fence or 0)
        assert await port.release(other) is None
        assert await port.extend([revoked]) == ["revoked"]
        assert await port.release(revoked) == "revoked"
        await port.cancel(following)
        assert await _is_free(harness)

    @needs("sharing")
    @case
    async def test_a_place_that_is_taken_anew_is_known_by_its_new_fence(self, harness: Harness) -> None:
        """It was handed over while its process stood still, and no caller has looked since its lease ended."""
        port, holder, late = harness.port, claim(), place(expire=self.ttl)
        await port.acquire(holder, 0)
        await port.acquire(late, None)
        await port.release(holder)
        await harness.sleep(2 * self.ttl)
        granted = await port.acquire(late._replace(expire=300), None)
        assert isinstance(granted, Granted)
        assert [line.fence for line in await port.inspect([NAME])] == [granted.fence]
        again = await port.acquire(late._replace(expire=300), None)
        assert isinstance(again, Granted)
        assert again.fence == granted.fence
        assert await port.revoke(NAME, granted.fence or 0)


async def _taken(harness: Harness) -> Lease:
    return await harness.acquire(the_lock(shared=True, expire=300))


async def _true(value: bool) -> bool:
    return value


async def _is_free(harness: Harness) -> bool:
    """Whether it is free, and its queue is empty: a caller that wants to be alone gets it at once."""
    probe = claim()
    answer = await harness.port.acquire(probe, 0)
    await harness.port.cancel(probe)
    return isinstance(answer, Granted)
