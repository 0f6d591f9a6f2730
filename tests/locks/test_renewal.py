"""The renewal: of what was asked for, for all who asked, and no longer than somebody holds it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from distlock_web import BackendUnavailable, Lease, LeaseLost, configure, lock
from distlock_web.core.backend import Claim, Loss
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import ending, watchdog
from distlock_web.locks.lease import scope_of
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.renewals import look_now, renewed_now
from tests.support.waiting import LONG, SOON, eventually


class LateOnce:
    """A port for renewals whose first answer is late, and which has no second one."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.asked = threading.Event()
        self.answer = threading.Event()

    async def extend(self, claims: Sequence[Claim], patience: float | None = None) -> list[Loss | None]:
        if self.asked.is_set():
            raise BackendUnavailable("The test has lost a renewal.")
        losses: list[Loss | None] = await self._port.extend(claims, patience)
        self.asked.set()
        assert self.answer.wait(SOON)
        return losses


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
def test_a_renewal_counts_for_what_was_asked_and_not_for_what_is_wanted_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nested block asked for a longer lease in vain; the answer to the shorter renewal was taken for its own."""
    store = registry().store("default")
    late = LateOnce(store.renewal_port())
    injector = FaultInjector(store)
    monkeypatch.setattr(store, "renewal_port", lambda: late)
    with lock("a", expire=1.5, renew=True, on_lost="warn") as lease:
        assert late.asked.wait(SOON)
        injector.cut()
        with pytest.raises(BackendUnavailable):
            lock("a", expire=60).acquire()
        injector.mend()
        late.answer.set()
        assert lease.lost.wait(SOON), "it believes in a lease that the store never gave"


@pytest.mark.slow
def test_a_store_that_hangs_costs_no_lease_of_another_store(make_redis: Callable[..., RedisServer]) -> None:
    """The one thread waited for the hanging store until the leases of the healthy one had ended."""
    hanging, healthy = make_redis(), make_redis()
    configure(
        {
            "default": {"LOCATION": healthy.url},
            "hanging": {"LOCATION": hanging.url, "OPTIONS": {"socket_timeout": LONG}},
        }
    )
    other = unrelated("a", store="hanging", expire=2 * LONG, renew=True)
    with lock("a", expire=LONG, renew=True) as lease:
        renewed_now(other)
        hanging.pause()
        try:
            look_now(other)
            for _ in range(3):
                renewed_now(lease)
            assert other.remaining
        finally:
            hanging.resume()
    other.release()


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.usefixtures("memory_store")
def test_a_callback_that_takes_long_stops_no_renewal() -> None:
    """The one thread of the watchdog ran the user's ``on_lost``, and meanwhile every other lease ended."""
    told, go_on = threading.Event(), threading.Event()

    def slow(lease: Lease) -> None:
        told.set()
        go_on.wait(SOON)

    lost = unrelated("a", expire=0.5, on_lost=slow)
    try:
        with lock("b", expire=1.5, renew=True, on_lost="warn") as lease:
            assert told.wait(SOON)
            assert not lease.lost.wait(2.5)
    finally:
        go_on.set()
    assert lost.state == "lost"


@pytest.mark.usefixtures("memory_store")
def test_the_loss_of_several_locks_is_told_once() -> None:
    told: list[Lease] = []
    with lock(["a", "b"], expire=60, on_lost=told.append) as lease:
        for name, fence in lease.fences.items():
            assert drive(registry().store("default").port(THREADS).revoke(name, fence))
    assert told == [lease]


@pytest.mark.timing
@pytest.mark.usefixtures("memory_store")
async def test_a_lease_that_nobody_took_from_its_task_is_not_renewed_for_ever() -> None:
    """``create_task(lock(...).aacquire())`` whose result is dropped kept the lock until the process ended."""
    task = asyncio.create_task(lock("a", expire=0.5, renew=True).aacquire())
    await asyncio.wait([task])
    del task
    gc.collect()
    async with lock("a", wait=SOON):
        pass


def inside_both(entered: Future[Lease], expire: float) -> str:
    """How a block over two names began, one of them lent by a block around it."""
    with lock("a", expire=expire, on_lost="warn") as lease:
        entered.set_result(lease)
        with lock(["a", "b"], expire=expire, wait=SOON, on_lost="warn") as both:
            return both.state


def test_a_lock_that_is_revoked_while_another_is_waited_for_is_not_entered(store: str, beside: Beside) -> None:
    """The block over the two began with a lock that somebody else could have by then."""
    other, entered = unrelated("b"), Future[Lease]()
    waiting = beside(inside_both, entered, 5.0)
    lease = entered.result(SOON)
    port = registry().store("default").port(THREADS)
    eventually(lambda: any(line.waiters for line in drive(port.inspect())), "it waits for the other")
    assert drive(port.revoke("disLock:a", lease.fences["disLock:a"]))
    assert lease.lost.wait(SOON)
    other.release()
    with pytest.raises(LeaseLost):
        waiting.result(SOON)


@pytest.mark.usefixtures("memory_store")
def test_the_first_renewal_is_in_time_though_it_has_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began to connect when a third of the lease was over, and the lease ended before it was through."""
    store = registry().store("default")
    late = LateOnce(store.renewal_port())
    late.answer.set()
    monkeypatch.setattr(store, "renewal_port", lambda: late)
    with lock("a", expire=4 * LONG, renew=True):
        assert late.asked.wait(LONG), "at once, and not when a third of it is over"


def test_a_dropped_response_of_a_store_that_hangs_costs_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog gave its lock back itself, and waited for the store that hung."""
    stores = configure({"default": {"BACKEND": "memory"}, "hanging": {"BACKEND": "memory"}})
    hanging, over, asked = stores.store("hanging"), threading.Event(), threading.Event()
    port = hanging.port(THREADS)

    async def hang(*args: object) -> None:
        asked.set()
        over.wait(LONG)

    monkeypatch.setattr(port, "release", hang)
    alive = [True]
    dropped = unrelated("dropped", store="hanging", expire=30)
    others = [unrelated("a", store=alias, renew=True) for alias in ("default", "hanging")]
    try:
        look = watchdog.renew_while(
            scope_of(dropped),
            60,
            alive=lambda: alive[0],
            when_abandoned=lambda: ending.end_now(scope_of(dropped), None),
        )
        alive[0] = False
        look()
        assert asked.wait(SOON)
        for lease in others:
            renewed_now(lease)
    finally:
        over.set()
    for lease in others:
        lease.release()


@pytest.mark.usefixtures("memory_store")
async def test_a_lock_is_kept_while_its_block_waits_for_its_turn_inside_another() -> None:
    """It was renewed while the store's queue was awaited, and ended while a sibling was."""
    order, injector = list[str](), FaultInjector(registry().store("default"))

    async def sibling() -> None:
        async with lock("b", expire=LONG):
            order.append("sibling")
            await asyncio.to_thread(eventually, lambda: "extend" in injector.calls, "the lock of the other is renewed")

    async def both() -> None:
        async with lock(["a", "b"], expire=LONG, wait=LONG) as lease:
            order.append("both")
            lease.raise_if_lost()

    async with lock("b", expire=LONG):
        first = asyncio.create_task(sibling())
        await asyncio.to_thread(eventually, lambda: order, "it is inside")
        assert injector.calls == ["acquire"]
        await both()
        await first
    assert order == ["sibling", "both"]
