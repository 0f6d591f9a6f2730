"""Which scopes the running code is inside of: found at once, left in any order, kept for nobody who has gone."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import pytest

from distlock_web import ConfigurationError, Lease, LeaseLost, current_lease, lock
from distlock_web.core.process import Process
from distlock_web.locks.lease import scope_of
from distlock_web.locks.lock import Lock
from distlock_web.locks.reentry import chain
from distlock_web.locks.reentry.gate import Turn, gate_of
from distlock_web.locks.scope import Scope
from tests.support.interruptions import at_moment
from tests.support.revoking import revoke
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.mark.parametrize("order", [1, -1], ids=["first in, first out", "last in, first out"])
def test_scopes_are_left_in_any_order(order: int) -> None:
    leases = [lock(f"key:{number}").acquire() for number in range(100)]
    for lease in leases[::order]:
        lease.release()
        others = [other for other in leases if other.state == "held"]
        assert current_lease() == (others[-1] if others else None)
        assert (chain.current_chain() is None) is (not others)
        assert lock(lease.name, prefix="").acquire().depth == 1, "it is held no more, so this is no re-entry"
    assert current_lease() is None


def test_leases_that_are_over_do_not_gather_in_the_chain() -> None:
    """A thread that always takes the next lock before it gives the last one back."""
    with lock("around", expire=600) as around:
        leases, lengths = [lock("key").acquire()], list[int]()
        for number in range(200):
            leases.append(lock(f"key:{number}").acquire())
            found = chain.current_chain()
            assert found is not None
            lengths.append(found[2])
            leases[-2].release()
        assert lengths == [*range(3, 65)] * 3 + [*range(3, 17)], "of those that are over it is freed at 64"
        leases[-1].release()
        assert current_lease() == around


def test_a_lease_that_nobody_has_any_more_is_in_no_longer_chain() -> None:
    with lock("around"):
        lock("a").acquire()
        lease = lock("b").acquire()
        found = chain.current_chain()
        assert found is not None
        assert found[2] == 2
        assert current_lease() == lease


def test_a_lease_that_was_released_elsewhere_is_not_the_current_one() -> None:
    with lock("around") as around:
        lease = lock("a").acquire()
        contextvars.Context().run(lease.release)
        assert current_lease() == around


def test_the_chain_is_as_long_as_it_says_and_is_seldom_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each lock that is taken it would cost as much as all that are held."""
    gone_through, without = list[chain.Chain](), chain._without

    def noted(found: chain.Chain, left: Scope | None) -> chain.Chain:
        gone_through.append(found)
        return without(found, left)

    monkeypatch.setattr(chain, "_without", noted)
    leases, lengths = list[Lease](), list[int]()
    for number in range(130):
        leases.append(lock(f"key:{number}").acquire())
        found = chain.current_chain()
        assert found is not None
        lengths.append(found[2])
    assert lengths == [*range(1, 131)]
    assert [found and found[2] for found in gone_through] == [64, 128]


def test_a_block_that_was_given_back_by_hand_does_not_end_the_one_around_it() -> None:
    """Both on one lock object: the inner block's end was taken for the outer one's."""
    shared = lock("a")
    with shared as outer:
        with shared as inner:
            inner.release()
        outer.raise_if_lost()
        assert current_lease() == outer
    assert outer.state == "released"


def held_by_a_generator(shared: Lock, seen: list[Lease]) -> Iterator[None]:
    with shared as lease:
        seen.append(lease)
        yield


def test_a_block_may_end_in_another_context_than_it_began_in() -> None:
    seen: list[Lease] = []
    steps = held_by_a_generator(lock("a"), seen)
    contextvars.Context().run(next, steps)
    assert list(steps) == []
    assert seen[0].state == "released"


def held_in_a_stack(shared: Lock, seen: list[Lease]) -> Iterator[None]:
    with ExitStack() as stack:
        seen.append(stack.enter_context(shared))
        yield


def revoked(lease: Lease) -> None:
    assert revoke(lease.name, lease.fences[lease.name])
    with pytest.raises(LeaseLost):
        lease.extend()


@contextmanager
def in_a_stack(shared: Lock) -> Iterator[Lease]:
    with ExitStack() as stack:
        yield stack.enter_context(shared)


@pytest.mark.parametrize("state", ["held", "unsure"])
@pytest.mark.parametrize("running_in", [lambda shared: shared, in_a_stack], ids=["in a block", "in a stack"])
@pytest.mark.parametrize("held", [held_by_a_generator, held_in_a_stack])
def test_a_generator_that_is_closed_in_somebodys_block_does_not_end_that(
    held: Callable[[Lock, list[Lease]], Iterator[None]],
    running_in: Callable[[Lock], AbstractContextManager[Lease]],
    state: str,
) -> None:
    """As garbage it is closed wherever that is collected. The running block's lock was released, and others got it."""
    shared, seen = lock("a", expire=60), list[Lease]()
    steps = held(shared, seen)
    contextvars.Context().run(next, steps)
    revoked(seen[0])
    with running_in(shared) as running:
        if state == "unsure":
            scope_of(running).holds[0].mark_unsure()
        steps.close()  # type: ignore[attr-defined]
        assert running.state == state
        assert current_lease() == running
        assert contextvars.Context().run(lock("a").try_acquire) is None
    assert running.state == "released"


def with_a_lease_by_hand(shared: Lock, seen: list[Lease]) -> Iterator[None]:
    with shared as lease:
        seen.extend((lease, lock("b").acquire()))
        yield


@pytest.mark.parametrize("end", [list, lambda steps: steps.close()], ids=["to its end", "closed"])
@pytest.mark.parametrize("held", [held_by_a_generator, with_a_lease_by_hand])
def test_a_block_that_ends_where_it_began_is_found_without_a_look_at_those_of_all_threads(
    held: Callable[[Lock, list[Lease]], Iterator[None]],
    end: Callable[[Iterator[None]], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain, "_find_elsewhere", lambda *_: pytest.fail("all are looked at"))
    seen = list[Lease]()
    steps = held(lock("a"), seen)
    next(steps)
    end(steps)
    assert seen[0].state == "released"


def test_nor_is_it_for_a_block_of_a_call_or_of_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "_find_elsewhere", lambda *_: pytest.fail("all are looked at"))
    shared = lock("a")
    with shared as outer, in_a_stack(shared) as inner:
        assert outer.depth == 2
    assert (outer.state, inner.state) == ("released", "released")


async def test_a_block_that_an_own_class_begins_in_one_coroutine_and_ends_in_another() -> None:
    """The innermost one of this call chain ends, of several on one lock object."""
    shared, states = lock("a"), list[str]()

    class Own:
        async def __aenter__(self) -> Lease:
            return await shared.__aenter__()

        async def __aexit__(self, *raised: Any) -> None:
            await shared.__aexit__(*raised)

    async with Own() as outer:
        async with Own() as inner:
            by_hand = await lock("b").aacquire()
        states += [outer.state, inner.state, by_hand.state]
    assert [*states, outer.state] == ["held", "released", "held", "released"]
    await by_hand.arelease()


def test_a_block_that_a_call_has_entered_is_not_known_by_the_frame_of_that() -> None:
    """Its id is another call's soon: where that closed a generator, an outer block's lock was released."""
    shared = lock("a", expire=60)
    with ExitStack() as stack:
        assert scope_of(stack.enter_context(shared)).opener == (shared, chain.STACKED)
    seen = list[Lease]()
    steps = held_by_a_generator(shared, seen)
    next(steps)
    assert scope_of(seen[0]).opener == (shared, steps.gi_frame)  # type: ignore[attr-defined]
    assert list(steps) == []
    assert scope_of(seen[0]).opener is None, "nothing keeps its frame"


async def test_an_asynchronous_one_does_not_either() -> None:
    shared, seen = lock("a", expire=60), list[Lease]()

    async def held() -> AsyncGenerator[None, None]:
        async with shared as lease:
            seen.append(lease)
            yield

    steps = held()
    await asyncio.create_task(steps.__anext__(), context=contextvars.Context())
    assert await asyncio.to_thread(revoke, seen[0].name, seen[0].fences[seen[0].name])
    with pytest.raises(LeaseLost):
        await seen[0].aextend()
    async with shared as running:
        await steps.aclose()
        assert running.state == "held"
    assert running.state == "released"


def is_taken() -> bool:
    lease = contextvars.Context().run(lock("a").try_acquire)
    if lease is not None:
        lease.release()
    return lease is None


@pytest.mark.parametrize("end", ["closed", "run to its end"])
def test_a_block_ends_while_a_generator_stands_still_inside_of_it(end: str) -> None:
    """Both on one lock object: the generator's was ended for it, and the lock stayed taken."""
    shared, seen = lock("a", expire=60), list[Lease]()
    steps = held_by_a_generator(shared, seen)
    with shared as running:
        next(steps)
        assert (running.depth, seen[0].depth) == (2, 2)
    assert (running.state, seen[0].state, is_taken()) == ("released", "lost", False)
    other = contextvars.Context().run(shared.__enter__)
    if end == "closed":
        steps.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(LeaseLost):
            next(steps)
    assert other.state == "held"
    other.release()


def test_a_block_of_a_stack_ends_with_that_and_not_with_the_block_around_it() -> None:
    shared = lock("a", expire=60)
    with ExitStack() as stack:
        with shared as outer:
            inner = stack.enter_context(shared)
            inner.raise_if_lost()
        assert (outer.state, inner.state, is_taken()) == ("released", "lost", False)
        with pytest.raises(LeaseLost):
            stack.close()


async def test_an_asynchronous_generator_that_a_task_has_begun_ends_its_own_block() -> None:
    """It ended the block around, which was told of a loss."""
    shared, seen = lock("a", expire=60), list[Lease]()

    async def events(blocks: int) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            for _ in range(blocks - 1):
                seen.append(await stack.enter_async_context(shared))
            async with shared as lease:
                seen.append(lease)
                yield

    for blocks in (1, 2):
        seen.clear()
        async with shared as running:
            steps = events(blocks)
            await asyncio.create_task(anext(steps))
            assert running.depth == 1 + blocks
            assert await anext(steps, "over") == "over"
            assert running.depth == 1
            assert await asyncio.to_thread(is_taken)
        assert {running.state, *(lease.state for lease in seen)} == {"released"}


async def test_two_blocks_of_one_generator_end_in_another_task_the_inner_one_first() -> None:
    shared, seen = lock("a", expire=60), list[str]()

    async def events() -> AsyncGenerator[None, None]:
        async with shared as outer:
            async with shared as inner:
                yield
            seen.extend((outer.state, inner.state))

    steps = events()
    await asyncio.create_task(anext(steps), context=contextvars.Context())
    assert await anext(steps, "over") == "over"
    assert seen == ["held", "released"]
    assert not await asyncio.to_thread(is_taken)


def test_a_generator_whose_lock_is_held_is_closed_though_another_block_has_lost_its() -> None:
    """That one hears of its loss."""
    shared, seen = lock("a", expire=60), list[Lease]()
    lost = contextvars.Context().run(shared.__enter__)
    revoked(lost)
    steps = held_by_a_generator(shared, seen)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert (seen[0].state, lost.state) == ("released", "lost")
    with pytest.raises(LeaseLost):
        contextvars.Context().run(shared.__exit__, None, None, None)


def test_of_several_blocks_none_is_guessed() -> None:
    shared, context = lock("a"), contextvars.Context()
    leases = [context.run(shared.__enter__) for _ in range(2)]
    with pytest.raises(ConfigurationError, match="Several blocks"):
        shared.__exit__(None, None, None)
    for _ in leases:
        context.run(shared.__exit__, None, None, None)
    assert [lease.state for lease in leases] == ["released", "released"]
    with pytest.raises(ConfigurationError, match="has not begun"):
        shared.__exit__(None, None, None)


def takes_or_reenters(file: str) -> bool:
    """All of the lock, but what has a mutex, which the thread that ends the outer block waits for."""
    return "/distlock_web/locks/" in file and not file.endswith(("/hold.py", "/reentry/gate.py"))


def test_a_lock_whose_outer_block_ends_just_then_is_taken_from_the_store() -> None:
    """Who was not inside of that yet heard that the lock was lost, which nobody had given it."""

    def enter(step: int) -> tuple[bool, int]:
        outer, depths, taken = lock("a", expire=30).acquire(), list[int](), list[Lease]()

        def end_elsewhere() -> None:
            depths.append(outer.depth)
            ending = threading.Thread(target=outer.release)
            ending.start()
            ending.join()

        def take() -> None:
            taken.append(lock("a", expire=30).__enter__())

        try:
            happened = at_moment(step, take, takes_or_reenters, end_elsewhere)
        except LeaseLost:
            assert depths == [2], "it was inside"
            return True, 2
        if depths == [1]:
            assert (taken[0].depth, taken[0].state) == (1, "held")
        with suppress(LeaseLost):
            taken[0].release()
        return happened, depths[0] if depths else 0

    depths = []
    for step in range(1000):
        happened, depth = contextvars.Context().run(enter, step)
        if not happened:
            break
        depths.append(depth)
    assert depths.count(1) > 10, "before it is inside"
    assert depths == sorted(depths)


def test_two_leases_of_one_block_are_equal() -> None:
    with lock("a") as lease:
        found = current_lease()
        assert found == lease
        assert found is not None
        assert {found, lease} == {lease}
        assert lease != "a"
        with lock("b") as other:
            assert other != lease


def test_who_waits_for_a_nested_lease_goes_on_when_nobody_has_that_any_more() -> None:
    """Its thread, inside of the lock, stood in front of it until its own time was over."""
    with lock("a", expire=30) as outer:
        sibling = contextvars.copy_context()
        forgotten = [lock("a").acquire()]
        waiting = threading.Thread(target=sibling.run, args=(enter_once, outer))
        waiting.start()
        gate = gate_of(scope_of(outer), scope_of(outer).holds[0])
        eventually(lambda: gate._waiting, "it waits")
        forgotten.clear()
        gc.collect()
        waiting.join(SOON)
        assert not waiting.is_alive()
        assert outer.depth == 1


def enter_once(outer: Lease) -> None:
    with lock("a", wait=LONG):
        assert outer.depth == 2


def test_a_nested_lease_that_was_released_leaves_once() -> None:
    """Garbage, it would leave again, and let a third one in beside the second."""
    with lock("a", expire=30) as outer:
        first = lock("a").acquire()
        first.release()
        with lock("a"):
            del first
            gc.collect()
            assert outer.depth == 2
            assert contextvars.Context().run(lock("a").try_acquire) is None
            gate = gate_of(scope_of(outer), scope_of(outer).holds[0])
            assert gate.try_enter(Turn(gate, scope_of(outer))) == "busy"


def test_where_a_block_stands() -> None:
    """A call's frame is not kept: it does not go on anywhere else."""

    def generator() -> Iterator[object]:
        frame = sys._getframe()
        yield chain.place_of(frame) is frame

    assert chain.place_of(sys._getframe()) == chain.CALLED
    assert list(generator()) == [True]


def test_a_block_that_is_a_call_may_end_in_another_context() -> None:
    block = lock("a")
    lease = contextvars.Context().run(block.__enter__)
    contextvars.Context().run(block.__exit__, None, None, None)
    assert lease.state == "released"


def test_a_block_that_has_not_begun_does_not_end() -> None:
    with pytest.raises(ConfigurationError) as caught:
        lock("a").__exit__(None, None, None)
    assert str(caught.value) == "A block on this lock object ends, but it has not begun, or has ended before."


def test_in_a_fork_a_block_of_its_parent_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "generation", Process.generation + 1)
    lock("a").__exit__(None, None, None)


def test_a_scope_that_goes_on_elsewhere_is_left_from_below_another() -> None:
    """As under a streaming response: the chain is the other one alone then, and counted so."""
    first, second = lock("a").acquire(), lock("b").acquire()
    chain.leave(scope_of(first))
    found = chain.current_chain()
    assert found is not None
    assert found[1:] == (None, 1)
    assert not chain.is_inside(scope_of(first))
    assert chain.is_inside(scope_of(second))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between two instructions only")
def test_while_garbage_is_collected_the_chain_is_not_set() -> None:
    """The context variable may be at it just now: to set it again was a crash."""
    lease = lock("a").acquire()
    before = chain.current_chain()
    chain._note_collection("start", {})
    try:
        lease.release()
        assert chain.current_chain() is before
    finally:
        chain._note_collection("stop", {})
    chain.leave(scope_of(lease))
    assert chain.current_chain() is None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between two instructions only")
def test_while_another_thread_collects_garbage_it_is() -> None:
    lease = lock("a").acquire()
    collecting = threading.Thread(target=chain._note_collection, args=("start", {}))
    collecting.start()
    collecting.join()
    try:
        lease.release()
    finally:
        chain._note_collection("stop", {})
    assert chain.current_chain() is None
