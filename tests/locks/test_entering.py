"""``with lease:``: the block runs under the lock or not at all, in whichever task or thread it is entered."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from typing import Any, Literal, cast

import pytest

from distlock_web import ConfigurationError, Lease, LeaseLost, LockBusy, NotHeld, current_lease, lock
from distlock_web.core.backend import Port
from distlock_web.core.registry import registry
from distlock_web.core.runtime import TASKS, THREADS, drive, now
from distlock_web.locks import watchdog
from distlock_web.locks.hold import Hold
from distlock_web.locks.lease import scope_of
from distlock_web.locks.reentry import entering
from distlock_web.locks.reentry.gate import ReentryGate, Turn, line_up
from distlock_web.locks.scope import Scope
from tests.support.callers import unrelated
from tests.support.renewals import renewed_now
from tests.support.revoking import revoke
from tests.support.waiting import LONG, SOON, eventually

ENDS: dict[str, Callable[[Lease], object]] = {
    "released": lambda lease: lease.release(),
    "handed over": lambda lease: lease.detach(),
    "its block has ended": lambda lease: lease.__exit__(None, None, None),
}


def held() -> list[str]:
    return [line.name for line in drive(registry().store("default").port(THREADS).inspect())]


async def aheld() -> list[str]:
    return [line.name for line in await registry().store("default").port(TASKS).inspect()]


# A lease that is over ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store")
async def test_a_lease_out_of_wait_for_is_the_callers_once_it_is_entered() -> None:
    lease = await asyncio.wait_for(lock("a").aacquire(), SOON)
    assert current_lease() == (lease if sys.version_info >= (3, 12) else None), "docs/how.md says so"
    async with lease:
        assert current_lease() == lease
        async with lock("a") as inner:
            assert inner.depth == 2
    assert current_lease() is None
    async with asyncio.timeout(SOON):
        lease = await lock("a").aacquire()
    assert current_lease() == lease
    await lease.arelease()


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_lease_that_is_over_is_not_entered(end: Callable[[Lease], object]) -> None:
    """The body ran without a lock, and nobody was told."""
    lease = lock("a").acquire()
    end(lease)
    with pytest.raises(NotHeld, match="is over"), lease:
        pytest.fail("the body ran")


@pytest.mark.usefixtures("memory_store")
def test_a_lost_lease_is_not_entered_and_what_it_has_still_is_released() -> None:
    """Whoever enters a lease has it released: nobody else will."""
    lease = lock(["a", "b"]).acquire()
    assert revoke("disLock:b", lease.fences["disLock:b"])
    with pytest.raises(LeaseLost):
        lease.extend()
    with pytest.raises(LeaseLost) as caught, lease:
        pytest.fail("the body ran")
    assert caught.value.reason == "revoked"
    assert held() == []
    lock("a").acquire().release()  # the call chain is not inside of it any more


@pytest.mark.timing
@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("on_lost", ["raise", "warn"])
async def test_an_expired_lease_is_not_entered_by_a_task(on_lost: str) -> None:
    lease = await lock("a", expire=0.5, on_lost=on_lost).aacquire()  # type: ignore[arg-type]
    await lease.lost
    with pytest.raises(LeaseLost) as caught:
        async with lease:
            pytest.fail("the body ran")
    assert caught.value.reason == "expired"
    await (await lock("a", wait=SOON).aacquire()).arelease()  # the call chain is not inside of it any more


# In another task or thread ------------------------------------------------------------------------------------------


async def test_a_blocking_block_in_an_event_loop_is_refused_before_it_begins(memory_store: None) -> None:
    """Its end refused it: the body's exception was hidden, and the lock was left held."""
    lease = await lock("a").aacquire()
    with pytest.raises(ConfigurationError, match="async with lease"), lease:
        pytest.fail("the body ran")
    assert lease.state == "held"
    async with lease:
        pass
    assert await aheld() == []


@pytest.mark.parametrize("on_lost", ["raise", "cancel"])
async def test_a_task_hands_its_lease_to_a_thread_and_waits_for_it(
    store: str, on_lost: Literal["raise", "cancel"]
) -> None:
    lease = await lock("a", expire=60, on_lost=on_lost).aacquire()

    def work() -> None:
        with lease:
            lease.extend()

    await asyncio.to_thread(work)
    assert await aheld() == []


@pytest.mark.parametrize("verb", ["aextend", "arelease", "adetach", "block"])
async def test_a_threads_lease_does_not_block_the_loop_that_uses_it(
    memory_store: None, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocking port was asked, in the loop."""
    lease = await asyncio.to_thread(unrelated, "a")

    def refuse() -> Port:
        raise AssertionError("the blocking port is asked in an event loop")

    monkeypatch.setattr(registry().store("default").backend, "sync_port", refuse)
    if verb == "block":
        async with lease:
            pass
    else:
        await getattr(lease, verb)()


@pytest.mark.usefixtures("memory_store")
async def test_waiting_for_the_loss_as_a_thread_does_is_refused_in_a_loop() -> None:
    """It stopped every other task, and the watchdog's word with them."""
    async with lock("a") as lease:
        with pytest.raises(ConfigurationError, match=r"await lease\.lost"):
            lease.lost.wait(0.01)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("verb", ["release", "extend", "detach"])
async def test_a_blocking_method_in_a_loop_says_what_to_write(verb: str) -> None:
    async with lock("a") as lease:
        with pytest.raises(ConfigurationError, match=rf"await lease\.a{verb}\(\)"):
            getattr(lease, verb)()
        lease.raise_if_lost()


@pytest.mark.timing
@pytest.mark.usefixtures("memory_store")
async def test_a_lease_that_is_lost_before_it_is_entered_cancels_at_once() -> None:
    lease = await asyncio.create_task(lock("a", expire=0.5, on_lost="cancel").aacquire())
    await lease.lost
    with pytest.raises(LeaseLost):
        async with lease:
            await asyncio.sleep(SOON)


# Renewal goes on while somebody has the lease ------------------------------------------------------------------------

TTL = 1.2


@pytest.mark.usefixtures("memory_store")
async def test_a_lease_that_a_task_returned_is_renewed_for_who_has_it() -> None:
    """Its renewal ended with the task that had taken it, and the block lost its lock."""
    lease = await asyncio.create_task(lock("a", expire=LONG, renew=True).aacquire())
    for _ in range(3):
        await asyncio.to_thread(renewed_now, lease)
    async with lease:
        lease.raise_if_lost()


@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
async def test_a_loss_cancels_the_task_that_entered_and_not_the_one_that_took_it() -> None:
    async def taker(taken: asyncio.Future[Lease]) -> str:
        taken.set_result(await lock("a", expire=TTL, on_lost="cancel").aacquire())
        await asyncio.sleep(3 * TTL)
        return "not cancelled"

    taken = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(taker(taken))
    with pytest.raises(LeaseLost):
        async with await taken:
            await asyncio.sleep(SOON)
    assert await task == "not cancelled"


# A lock that the call chain has -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store")
def test_a_lease_that_is_lost_is_told_also_where_a_sibling_is_inside() -> None:
    """That one has its turn still, in a lock that is gone: to hear that it is busy helps nobody."""
    outer, sibling = lock("a", expire=LONG), lock("a")
    with pytest.raises(LeaseLost), outer as lease:
        context = contextvars.copy_context()
        context.run(sibling.__enter__)
        scope_of(lease).holds[0].lose("revoked")
        with pytest.raises(LeaseLost), lock("a", wait=0):
            pytest.fail("the body ran")
        with pytest.raises(LeaseLost):
            context.run(sibling.__exit__, None, None, None)


@pytest.mark.usefixtures("memory_store")
def test_a_lost_lease_in_hand_does_not_keep_its_own_taker_out() -> None:
    lost = lock("a").acquire()
    assert revoke("disLock:a", lost.fences["disLock:a"])
    (hold,) = scope_of(lost).holds
    hold.lose("revoked")
    lock("a", wait=0).acquire().release()


@pytest.mark.usefixtures("memory_store")
def test_a_lease_that_is_entered_elsewhere_just_then_is_not_entered_by_its_taker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was on its way to the gate, which the other one has closed."""
    lease = lock("a").acquire()

    def enter_elsewhere(scope: Scope, gate: ReentryGate) -> Turn:
        turn = line_up(scope, gate)
        contextvars.Context().run(lease.__enter__)
        return turn

    monkeypatch.setattr(entering, "line_up", enter_elsewhere)
    with pytest.raises(LockBusy), lock("a", wait=0):
        pytest.fail("the body ran")
    assert lease.depth == 1
    lease.__exit__(None, None, None)
    assert held() == []


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("expire", "left", "asked", "at_least", "at_most"),
    [(600.0, 10.0, 100.0, 50.0, 100.0), (20.0, 20.0, 100.0, 50.0, 100.0), (600.0, 600.0, 100.0, 500.0, 600.0)],
    ids=["little is left", "it is longer", "there is enough"],
)
def test_a_nested_block_has_the_time_that_it_asks_for(
    expire: float, left: float, asked: float, at_least: float, at_most: float
) -> None:
    with lock("a", expire=expire) as outer:
        (hold,) = scope_of(outer).holds
        hold.deadline = min(hold.deadline, now() + left)
        with lock("a", expire=asked):
            assert at_least < hold.remaining <= at_most


@pytest.mark.usefixtures("memory_store")
async def test_what_was_taken_before_a_sibling_was_waited_for_is_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has aged meanwhile, and the store may have lost it."""
    go_on, extended, extend_holds = asyncio.Event(), list[list[str]](), watchdog.extend_holds

    async def noted(port: Port, holds: list[Hold], expire: float | None) -> None:
        extended.append([hold.name for hold in holds])
        await extend_holds(port, holds, expire)

    async def inside() -> None:
        async with lock("b", expire=LONG):
            await go_on.wait()

    async def waiting() -> None:
        async with lock(["a", "b"], expire=LONG, wait=LONG):
            pass

    monkeypatch.setattr(watchdog, "extend_holds", noted)
    async with lock("b", expire=LONG) as outer:
        siblings = [asyncio.create_task(inside()), asyncio.create_task(waiting())]
        gates = cast(dict[str, ReentryGate], scope_of(outer).gates)
        await asyncio.to_thread(eventually, lambda: any(gate._waiting for gate in list(gates.values())), "it waits")
        go_on.set()
        await asyncio.gather(*siblings)
    assert extended == [["disLock:a"]]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("wait", [0, 1, None])
def test_a_sibling_is_waited_for_by_who_waits(wait: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def enter(self: ReentryGate, *given: object) -> str:
        asked.append(given)
        return "busy"

    monkeypatch.setattr(ReentryGate, "enter", enter)
    sibling = lock("a")
    with lock("a"):
        context = contextvars.copy_context()
        context.run(sibling.__enter__)
        with pytest.raises(LockBusy), lock("a", wait=wait):
            pytest.fail("the body ran")
        context.run(sibling.__exit__, None, None, None)
    assert bool(asked) is (wait != 0)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("outer", "inner", "text"),
    [
        ({"shared": True}, {}, "shared, and a block inside it wants to be alone:"),
        ({"shared": True}, {"limit": 2}, "shared, and a block inside it wants at most 2 holders:"),
        ({"limit": 3}, {}, "with limit=3, and a block inside it wants to be alone:"),
        ({"limit": 3}, {"limit": 2}, "with limit=3, and a block inside it wants at most 2 holders:"),
        ({"limit": 3}, {"shared": True}, "with limit=3, and a block inside it wants readers only:"),
    ],
)
def test_a_block_that_would_wait_for_its_own_call_chain_hears_why(
    outer: dict[str, Any], inner: dict[str, Any], text: str
) -> None:
    with (
        lock("a", **outer),
        pytest.raises(ConfigurationError, match=f"holds the lock 'disLock:a' {text}"),
        lock("a", **inner),
    ):
        pytest.fail("the body ran")
