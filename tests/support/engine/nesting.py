"""Blocks nest, leases do not; who outlives his block holds nothing; what a nested block asks for holds (law 2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    Lease,
    LeaseLost,
    LockBusy,
    NotHeld,
    current_lease,
    lock,
)
from distlock_web.locks.fencing import fence_of
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import KEY, NAME, PREFIX, Cases, case, needs, the_lock
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import ActorEvent, Harness

#: How the call chain has the lock, and whether a lease in it is still for blocks alone.
AROUND = {"a block": False, "a decorated call": False, "a lease": True, "an entered lease": False, "both": True}


#: How a lease was taken, and how many blocks are around it.
LEVELS = {"outermost": 0, "nested": 1, "nested twice": 2, "a lease in a block": 1}


@asynccontextmanager
async def around(harness: Harness, how: str) -> AsyncIterator[None]:
    """Inside of the lock in this way."""
    if how == "a block":
        async with harness.inside(the_lock()):
            yield
    elif how == "both":  # a lease that was taken inside of a block
        async with harness.inside(the_lock()):
            lease = await harness.acquire(the_lock())
            yield
            await harness.release(lease)
    elif how == "a lease":
        lease = await harness.acquire(the_lock())
        yield
        await harness.release(lease)
    else:
        async with harness.inside(await harness.acquire(the_lock())):
            yield


class NestingCases(Cases):
    # Blocks nest, leases do not ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", AROUND)
    @case
    async def test_blocks_enter_whatever_the_call_chain_has(self, harness: Harness, how: str) -> None:
        async def nested() -> int:
            lease = current_lease()
            assert lease is not None
            return lease.depth

        async def work() -> None:
            injector = FaultInjector(harness.store)
            async with harness.inside(the_lock()) as lease:
                assert lease.depth == await nested()
            assert await harness.decorated(nested, key=KEY, prefix=PREFIX, wait=0)() > 1
            assert injector.calls == []
            injector.remove()

        if how == "a decorated call":
            await harness.decorated(work, key=KEY, prefix=PREFIX, expire=30)()
        else:
            async with around(harness, how):
                await work()
        assert await harness.line(NAME) is None

    @pytest.mark.parametrize("how", AROUND)
    @case
    async def test_an_acquire_enters_blocks_and_no_lease(self, harness: Harness, how: str) -> None:
        async def work() -> None:
            lease = await harness.try_acquire(the_lock())
            assert (lease is None) is AROUND[how]
            if lease is not None:
                await harness.release(lease)
                return
            with pytest.raises(LockBusy, match="this call chain, by a lease: enter it by `with`") as caught:
                await harness.acquire(the_lock())
            assert caught.value.name == NAME
            assert caught.value.retry_after > 0
            assert caught.value.holder is not None
            with pytest.raises(ConfigurationError, match="wait for itself"):
                await harness.try_acquire(the_lock(wait=None))
            assert await harness.try_acquire(the_lock(wait=0.05)) is None, "nobody ended it in that time"

        if how == "a decorated call":
            await harness.decorated(work, key=KEY, prefix=PREFIX, expire=30)()
        else:
            async with around(harness, how):
                await work()
        assert await harness.line(NAME) is None

    @case
    async def test_a_dispatcher_that_hands_its_leases_on_excludes_itself(self, harness: Harness) -> None:
        """All of its workers ran at once, and no event showed it."""
        inside, most = 0, 0

        async def work(lease: Lease, go_on: ActorEvent) -> None:
            nonlocal inside, most
            async with harness.inside(lease):
                inside += 1
                most = max(most, inside)
                async with harness.inside(the_lock()):  # its own block: goes in
                    await go_on.wait()
                inside -= 1

        for together in (True, False):  # taken before the first worker has begun, or after
            taken = [await harness.try_acquire(the_lock()) for _ in range(3)] if together else []
            leases = [lease for lease in taken if lease] or [await harness.acquire(the_lock())]
            assert len(leases) == 1
            go_on = harness.event()
            worker = harness.sibling(partial(work, leases[0], go_on))

            async def begun() -> bool:
                return inside == 1

            await harness.until(begun)
            assert current_lease() is None, "it is the worker's"
            assert await harness.try_acquire(the_lock()) is None
            with pytest.raises(LockBusy):
                async with harness.inside(the_lock()):
                    pytest.fail("beside the worker")
            go_on.set()
            await worker.result()
            assert await harness.line(NAME) is None
        assert most == 1
        async with harness.inside(the_lock()) as lease:
            assert lease.depth == 1

    @pytest.mark.parametrize("begun", [True, False])
    @case
    async def test_a_dispatcher_that_waits_gets_the_lock_when_its_worker_has_ended(
        self, harness: Harness, begun: bool
    ) -> None:
        """It was refused, or not, as the worker had begun already or not."""
        lease = await harness.acquire(the_lock())
        go_on, inside = harness.event(), harness.event()

        async def work() -> None:
            if not begun:
                await go_on.wait()
            async with harness.inside(lease):
                inside.set()
                await go_on.wait()

        async def dispatch() -> Lease:
            return await harness.acquire(the_lock(wait=60))

        worker = harness.sibling(work)
        if begun:
            await inside.wait()
        dispatcher = harness.sibling(dispatch)
        await harness.waiters(NAME, 1)
        go_on.set()
        following = await dispatcher.result()
        await worker.result()
        assert following.fence != lease.fence
        await harness.release(following)

    @needs("sharing")
    @pytest.mark.parametrize("how", ["leases", "leases in a block", "lost leases"])
    @pytest.mark.parametrize(
        ("holds", "asks", "taken"),
        [
            ({"limit": 3}, {"limit": 3}, 2),
            ({"limit": 3}, {"limit": 2}, 1),
            ({"limit": 2}, {"limit": 3}, 1),
            ({"shared": True}, {"shared": True}, 4),
            ({"shared": True}, {"limit": 3}, 0),
            ({"limit": 3}, {}, 0),
        ],
    )
    @case
    async def test_a_lease_keeps_its_call_chain_from_no_other_place(
        self, harness: Harness, holds: dict[str, Any], asks: dict[str, Any], taken: int, how: str
    ) -> None:
        """All but the first were refused. In a block they take turns in its place, as its blocks do."""
        leases = list[Lease]()

        async def dispatch() -> None:
            leases.append(await harness.acquire(the_lock(**holds)))
            if how == "lost leases":
                scope_of(leases[0]).acquired[0].lose("revoked")
            for _ in range(4):
                lease = await harness.try_acquire(the_lock(**asks))
                if lease is None:
                    break
                leases.append(lease)
            if len(leases) < 5 and how != "lost leases":
                with pytest.raises(ConfigurationError, match="wait for itself"):
                    await harness.try_acquire(the_lock(wait=None, **asks))

        if how == "leases in a block":
            async with harness.inside(the_lock(**holds)):
                await dispatch()
                for lease in leases[1:]:
                    assert lease.fence == leases[0].fence
            assert len(leases) == 1 + (taken if "shared" in asks else 0)
        else:
            await dispatch()
            assert len({lease.fence for lease in leases}) == len(leases) == 1 + taken
        for lease in leases:
            with suppress(LeaseLost):
                await harness.release(lease)

    @case
    async def test_a_lost_lease_is_passed_by_where_another_is_taken(self, harness: Harness) -> None:
        """A dispatcher's loop ended for a message that had waited too long for its worker."""
        late = await harness.acquire(the_lock(expire=self.ttl))
        assert await harness.lost(late)
        following = await harness.acquire(the_lock(wait=60))
        assert following.fence != late.fence
        assert await harness.try_acquire(the_lock()) is None
        async with harness.inside(following) as entered:
            assert entered.depth == 1
        with pytest.raises(LeaseLost, match="cannot enter it again"):
            async with harness.inside(the_lock()):
                pytest.fail("inside of a lost lease")
        with pytest.raises(LeaseLost):
            await harness.release(late)

    @case
    async def test_a_lost_lease_inside_of_a_block_leaves_it_that(self, harness: Harness) -> None:
        async with harness.inside(the_lock()) as outer:
            lease = await harness.acquire(the_lock())
            scope_of(lease).without(scope_of(lease).holds[0], "ended")
            with pytest.raises(LeaseLost):
                await harness.release(lease)
            again = await harness.acquire(the_lock())
            assert again.fence == outer.fence
            await harness.release(again)

    @case
    async def test_a_lease_is_entered_by_one_block_at_a_time(self, harness: Harness) -> None:
        async def enter(lease: Lease) -> None:
            with pytest.raises(ConfigurationError, match="entered already"):
                async with harness.inside(lease):
                    pytest.fail("a second one is inside")

        async with harness.inside(the_lock()) as block:
            await enter(block)
        lease = await harness.acquire(the_lock())
        async with harness.inside(lease):
            await enter(lease)
            await harness.sibling(lambda: enter(lease)).result()
            await harness.unrelated(lambda: enter(lease)).result()
            lease.raise_if_lost()
        assert await harness.line(NAME) is None
        with pytest.raises(NotHeld):
            async with harness.inside(lease):
                pytest.fail("it is over")

    @case
    async def test_a_lease_whose_call_chain_is_inside_is_not_entered_elsewhere(self, harness: Harness) -> None:
        """It would be, beside that block."""
        lease = await harness.acquire(lock(["a", KEY], prefix=PREFIX))

        async def enter() -> None:
            async with harness.inside(lease):
                pass

        async with harness.inside(the_lock()) as nested:
            with pytest.raises(ConfigurationError, match="entered already"):
                await harness.unrelated(enter).result()
            nested.raise_if_lost()
        async with harness.inside(lock("a", prefix=PREFIX)):  # the gates are as they were
            pass
        await harness.unrelated(enter).result()
        assert await harness.port.inspect() == []

    @case
    async def test_who_waited_to_enter_a_lease_waits_for_the_lock_where_another_enters_it(
        self, harness: Harness
    ) -> None:
        lease = await harness.acquire(the_lock())
        entered, leave = harness.event(), harness.event()

        async def worker() -> None:
            async with harness.inside(lease):
                entered.set()
                await leave.wait()

        async def late() -> bool:
            await entered.wait()
            async with harness.inside(the_lock(wait=None)) as own:
                return own.fence != lease.fence and own.depth == 1

        waiting = harness.sibling(late)
        working = harness.sibling(worker)
        await entered.wait()
        await harness.waiters(NAME, 1)
        leave.set()
        await working.result()
        assert await waiting.result()

    # Who outlives his block holds nothing -----------------------------------------------------------------------

    @case
    async def test_who_outlives_the_nested_block_that_he_came_in_by_is_told(self, harness: Harness) -> None:
        """He was inside beside the next nested block, his lease ``held``."""
        seen = dict[str, Lease]()
        begun, leave = harness.event(), harness.event()

        async def survivor() -> None:
            async with (
                harness.inside(the_lock(renew=True)) as seen["child"],
                harness.inside(the_lock()) as seen["grandchild"],
            ):
                begun.set()
                assert await harness.lost(seen["grandchild"])
                with pytest.raises(LeaseLost):
                    await harness.extend(seen["child"])
                with pytest.raises(LeaseLost, match="cannot enter it again"):
                    await harness.acquire(the_lock())
                await leave.wait()

        async with harness.inside(the_lock()) as outer:
            async with harness.inside(the_lock()):
                actor = harness.sibling(survivor)
                await begun.wait()
                assert [lease.state for lease in seen.values()] == ["held", "held"]
            async with harness.inside(the_lock()) as following:
                for lease in seen.values():
                    assert (lease.state, lease.reason, lease.remaining) == ("lost", "ended", 0.0)
                    assert lease.lost
                    with pytest.raises(LeaseLost):
                        lease.raise_if_lost()
                leave.set()
                with pytest.raises(LeaseLost) as caught:
                    await actor.result()
                assert caught.value.reason == "ended"
                following.raise_if_lost()
            outer.raise_if_lost()
        assert [lease.state for lease in seen.values()] == ["lost", "lost"], "for good"

    @pytest.mark.parametrize("names", [(KEY,), (KEY, "other")])
    @pytest.mark.parametrize("level", LEVELS)
    @case
    async def test_who_outlives_his_block_has_no_lock_at_any_level(
        self, harness: Harness, level: str, names: tuple[str, ...]
    ) -> None:
        """Of a nested one the lease stayed valid, its fence too, beside the sibling that came in next."""
        many = lock(list(names), prefix=PREFIX, expire=30, wait=0)
        async with AsyncExitStack() as blocks:
            for _ in range(LEVELS[level]):
                outer = await blocks.enter_async_context(harness.inside(the_lock()))
            if level == "a lease in a block":
                lease = await harness.acquire(many)
                await harness.release(lease)
            else:
                async with harness.inside(many) as lease:
                    pass

            def hears() -> None:
                assert (lease.state, lease.reason, lease.remaining, bool(lease.lost)) == ("released", None, 0.0, False)
                for ask in (lease.raise_if_lost, partial(fence_of, lease, KEY)):
                    with pytest.raises(LeaseLost) as caught:
                        ask()
                    assert caught.value.reason in ("ended", "revoked")

            hears()
            if not LEVELS[level]:
                return
            async with harness.inside(the_lock()) as following:
                hears()
                following.raise_if_lost()
            scope_of(outer).holds[0].lose("revoked")
            hears()
            with pytest.raises(LeaseLost):
                await blocks.aclose()
            hears()

    @pytest.mark.parametrize("names", [(KEY,), (KEY, "other")])
    @case
    async def test_of_a_nested_block_that_has_lost_its_lock_it_stays_lost(
        self, harness: Harness, names: tuple[str, ...]
    ) -> None:
        with pytest.raises(LeaseLost):
            async with harness.inside(the_lock()) as outer:
                with pytest.raises(LeaseLost):
                    async with harness.inside(lock(list(names), prefix=PREFIX, expire=30, wait=0)) as lease:
                        scope_of(outer).holds[0].lose("revoked")
                assert (lease.state, lease.reason, bool(lease.lost)) == ("lost", "revoked", True)
        assert (lease.state, lease.reason, bool(lease.lost)) == ("lost", "revoked", True)

    @pytest.mark.parametrize("which", [KEY, "other"])
    @case
    async def test_a_listener_hears_of_the_loss_of_each_of_his_locks(self, harness: Harness, which: str) -> None:
        """At the end of the block he was not told, where another of its locks was that of the block around it. Who
        waited for the loss was woken before it was known."""
        told, woken = list[str](), list[str]()

        def hear(lease: Lease) -> None:
            told.append(lease.state)

        with suppress(LeaseLost):
            async with (
                harness.inside(the_lock()),
                harness.inside(lock([KEY, "other"], prefix=PREFIX, expire=30, wait=0, on_lost=hear)) as lease,
            ):
                scope_of(lease).on_end(lambda: woken.append(lease.state))
                fence = lease.fence_for(which)
                assert fence is not None
                await harness.port.revoke(PREFIX + which, fence)
        # That it was revoked is known where it is released: of the outer one's not here.
        assert told == (["lost"] if which == "other" else [])
        assert woken == (["lost"] if which == "other" else ["released"])

    @pytest.mark.parametrize("by_hand", [False, True])
    @pytest.mark.parametrize("names", [(KEY,), (KEY, "other"), ("other", KEY)])
    @case
    async def test_a_listener_hears_of_a_loss_that_the_end_of_his_block_finds(
        self, harness: Harness, names: tuple[str, ...], by_hand: bool
    ) -> None:
        """The process stood still until the lease around had ended. The end of the block knew, and he was not told."""
        told, woken = list[str](), list[str]()
        both = lock(list(names), prefix=PREFIX, expire=30, wait=0, on_lost=lambda lease: told.append(lease.state))

        def stand_still(lease: Lease) -> None:
            scope_of(lease).on_end(lambda: woken.append(lease.state))
            scope_of(outer).holds[0].deadline = 0.0
            assert told == []

        with suppress(LeaseLost):
            async with harness.inside(the_lock()) as outer:
                if by_hand:
                    stand_still(lease := await harness.acquire(both))
                    with pytest.raises(LeaseLost):
                        await harness.release(lease)
                else:
                    async with harness.inside(both) as lease:
                        stand_still(lease)
        assert (told, set(woken), lease.reason) == (["lost"], {"lost"}, "expired")

    @case
    async def test_a_listener_of_his_hears_of_it(self, harness: Harness) -> None:
        begun, leave = harness.event(), harness.event()
        told = list[str]()

        async def survivor() -> None:
            async with harness.inside(the_lock(on_lost=lambda lease: told.append(lease.state))):
                begun.set()
                await leave.wait()

        async with harness.inside(the_lock()) as outer:
            async with harness.inside(the_lock()):
                actor = harness.sibling(survivor)
                await begun.wait()
            assert told == ["lost"]
            leave.set()
            await actor.result()
            outer.raise_if_lost()
        assert told == ["lost"]

    # What a nested block asks for holds -------------------------------------------------------------------------

    @pytest.mark.parametrize("ends", ["well", "with an error", "outer with an error"])
    @case
    async def test_hold_at_least_of_a_nested_block_keeps_the_lock(self, harness: Harness, ends: str) -> None:
        """A second click paid again."""

        async def pay() -> None:
            if ends == "with an error":
                raise ZeroDivisionError

        paying = harness.decorated(pay, key=KEY, prefix=PREFIX, hold_at_least=20)
        try:
            async with harness.inside(the_lock(hold_at_least=5)):
                await paying()
                if ends == "outer with an error":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        if ends == "with an error":
            assert await harness.line(NAME) is None
        else:
            line = await harness.shown(NAME)
            assert (line.state, 15 < line.remaining <= 20) == ("cooldown", True)

    @case
    async def test_a_nested_block_has_about_the_lease_that_it_asks_for(self, harness: Harness) -> None:
        """It had what the outer one's had left, and lost it after its work."""
        async with harness.inside(the_lock(expire=40)) as outer:
            injector = FaultInjector(harness.store)
            for asks, times in ((40, 0), (70, 0), (100, 1), (100, 1), (160, 2), (240, 3)):
                async with harness.inside(the_lock(expire=asks) if asks > 80 else the_lock(expire=asks / 2)) as inner:
                    assert inner.remaining > 0.45 * asks
                assert injector.calls == ["extend"] * times
            assert outer.remaining > 200

    @case
    async def test_one_that_asks_for_as_long_late_in_the_lease_extends_it(self, harness: Harness) -> None:
        expire = 2 * self.kept
        async with harness.inside(the_lock(expire=expire)) as outer:
            await harness.sleep(expire * 0.6)
            injector = FaultInjector(harness.store)
            async with harness.inside(the_lock(expire=expire)) as inner:
                assert injector.calls == ["extend"]
                assert inner.remaining > expire / 2
            outer.raise_if_lost()

    @case
    async def test_a_store_that_is_silent_then_keeps_out_only_who_asks_for_longer(self, harness: Harness) -> None:
        """It was a 503, with four seconds left of a lease that was surely there."""
        expire = 2 * self.kept
        async with harness.inside(the_lock(expire=expire)) as outer:
            await harness.sleep(expire * 0.6)
            injector = FaultInjector(harness.store)
            injector.cut()
            async with harness.inside(the_lock(expire=expire)) as inner:
                assert inner.state == "unsure"
                assert set(injector.calls) == {"extend"}
            with pytest.raises(BackendUnavailable):
                await harness.acquire(the_lock(expire=expire * 2))
            injector.remove()
            outer.raise_if_lost()
            await harness.extend(outer)
            assert outer.state == "held"

    @needs("bounded_queue")
    @pytest.mark.parametrize("most", [1, 3])
    @case
    async def test_max_waiters_counts_those_that_wait_to_enter(self, harness: Harness, most: int) -> None:
        """All twenty ran."""
        leave = harness.event()
        entered, refused = list[int](), list[LockBusy]()

        async def one() -> None:
            try:
                async with harness.inside(the_lock(wait=None, max_waiters=most)):
                    entered.append(1)
                    await leave.wait()
            except LockBusy as error:
                refused.append(error)

        async with harness.inside(the_lock()):
            actors = [harness.sibling(one) for _ in range(8)]

            async def settled() -> bool:
                return len(refused) == 7 - most

            await harness.until(settled)
            leave.set()
            for actor in actors:
                await actor.result()
        assert len(entered) == 1 + most
        assert all("max_waiters" in str(error) for error in refused)

    # A hand-over ------------------------------------------------------------------------------------------------

    @needs("transfer")
    @pytest.mark.parametrize("hands", [1, 2])
    @pytest.mark.parametrize("fails", [False, True])
    @pytest.mark.parametrize("nested", [False, True])
    @case
    async def test_a_lease_that_is_handed_over_keeps_hold_at_least(
        self, harness: Harness, nested: bool, fails: bool, hands: int
    ) -> None:
        """That of a nested block that has succeeded whatever comes, as without the hand-over."""
        async with harness.inside(the_lock(hold_at_least=0 if nested else 60)) as lease:
            if nested:
                async with harness.inside(the_lock(hold_at_least=60)):
                    pass
            ticket = await harness.detach(lease)
        for _ in range(1, hands):
            ticket = await harness.detach(await harness.attach(ticket))
        with suppress(ZeroDivisionError):
            async with harness.inside(await harness.attach(ticket)):
                if fails:
                    raise ZeroDivisionError
        if fails and not nested:
            assert await harness.line(NAME) is None
        else:
            line = await harness.shown(NAME)
            assert (line.state, line.remaining > 40) == ("cooldown", True)

    @needs("transfer")
    @case
    async def test_a_lease_that_is_handed_over_is_renewed_no_longer_than_it_would_have_been(
        self, harness: Harness
    ) -> None:
        """It was renewed without end."""
        lease = await harness.acquire(the_lock(expire=self.ttl, renew=True, renew_for=self.ttl))
        attached = await harness.attach(await harness.detach(lease))
        assert await harness.lost(attached)

    @needs("transfer")
    @pytest.mark.parametrize("lost", [["request", "request"], ["answer", "request"], ["answer", "answer"]])
    @case
    async def test_a_block_whose_hand_over_fails_is_told_that_it_has_no_lock(
        self, harness: Harness, lost: list[str]
    ) -> None:
        """It went on, its lock free for others, and its end said nothing."""
        told = list[str]()
        injector = FaultInjector(harness.store)
        with pytest.raises(LeaseLost) as caught:
            async with harness.inside(the_lock(on_lost="raise")) as lease:
                injector.lose("detach", *lost)  # type: ignore[arg-type]
                try:
                    await harness.detach(lease)
                except Exception as error:
                    told.append(type(error).__name__)
                assert (lease.state, lease.reason, bool(lease.lost)) == ("lost", "unreachable", True)
                with pytest.raises(LeaseLost):
                    lease.raise_if_lost()
        assert (told, caught.value.reason) == (["BackendUnavailable"], "unreachable")
        assert await harness.line(NAME) is None
        async with harness.inside(the_lock()):  # the call chain is not inside of it any more
            pass
