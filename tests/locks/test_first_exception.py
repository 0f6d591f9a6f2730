"""What a caller hears of is what happened first: nothing that fails while giving back takes its place (law 8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from distlock_web import (
    BackendUnavailable,
    Lease,
    LeaseLost,
    LockBusy,
    attach,
    current_lease,
    distributed_lockable,
    lock,
)
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import Busy, Claim, Granted, drift
from distlock_web.core.registry import registry
from distlock_web.core.runtime import TASKS, THREADS, Token, drive, now
from distlock_web.locks import ending
from distlock_web.locks.lease import scope_of
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import Beside, unrelated
from tests.support.revoking import revoke_the_lock
from tests.support.waiting import SOON, eventually

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.fixture
def injected() -> FaultInjector:
    """On the way to the store; ``b`` is taken by somebody else."""
    unrelated("b")
    return FaultInjector(registry().store("default"))


def waiters() -> int:
    lines = drive(registry().store("default").backend._backend.sync_port().inspect())  # type: ignore[attr-defined]
    return sum(line.waiters for line in lines)


async def cancelled_while_it_waits(work: Callable[[], Any], injected: FaultInjector) -> asyncio.Task[Any]:
    """Cancel it while it has ``a`` and waits for ``b``, and the store is unreachable."""
    task = asyncio.create_task(work())
    await asyncio.to_thread(eventually, waiters, "it waits")
    injected.cut()
    task.cancel()
    await asyncio.wait([task])
    return task


async def test_a_cancellation_stays_one_though_nothing_can_be_given_back(
    injected: FaultInjector, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with lock(["a", "b"], wait=SOON):
            pass

    task = await cancelled_while_it_waits(work, injected)
    assert task.cancelled()
    assert "could not be released" in caplog.text


async def test_a_cancelled_call_never_runs_without_its_lock(injected: FaultInjector) -> None:
    """The cancellation became BackendUnavailable, and ``on_backend_error="open"`` let the call through."""
    ran: list[object] = []

    @distributed_lockable(key=["a", "b"], wait=SOON, on_backend_error="open")
    async def pay() -> None:
        ran.append(current_lease())

    task = await cancelled_while_it_waits(pay, injected)
    assert task.cancelled()
    assert ran == []


async def test_a_call_that_is_cancelled_while_an_unreachable_store_is_asked_to_undo_does_not_run(
    memory_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first exception was BackendUnavailable; the task has to end all the same."""
    store = registry().store("default")
    injector = FaultInjector(store)
    undoing, go_on = asyncio.Event(), asyncio.Event()
    ran: list[object] = []

    async def slow_cancel(claim: object) -> None:
        undoing.set()
        await go_on.wait()

    port = store.port(TASKS)
    monkeypatch.setattr(port, "cancel", slow_cancel, raising=False)
    monkeypatch.setattr(store, "port", lambda runtime: port)
    injector.lose("acquire", "request", "request")

    @distributed_lockable(key="a", on_backend_error="open")
    async def pay() -> None:
        ran.append(True)

    task = asyncio.create_task(pay())
    await undoing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ran == []


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_the_end_of_the_process_stays_one(
    injected: FaultInjector, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = registry().store("default")
    port = store.port(THREADS)

    async def interrupted(*args: object) -> None:
        injected.cut()
        raise kind("the worker is stopped")

    monkeypatch.setattr(port, "wait", interrupted, raising=False)
    monkeypatch.setattr(store, "port", lambda runtime: port)
    with pytest.raises(kind, match="is stopped") as caught, lock(["a", "b"], wait=SOON):
        pass
    assert any("could not be released" in note for note in caught.value.__notes__)


def test_busy_stays_busy(injected: FaultInjector) -> None:
    injected.lose("release", "request", "request")
    with pytest.raises(LockBusy) as caught, lock(["a", "b"], wait=0):
        pass
    assert caught.value.name == "disLock:b"


@dataclass(frozen=True)
class Frozen(Exception):
    """It takes no note: ``add_note`` raises ``FrozenInstanceError``."""

    why: str = "the body's"


class OddNotes(Exception):
    __notes__ = "a text"  # type: ignore[assignment]


def fail_at_the_release(patch: pytest.MonkeyPatch) -> None:
    """The store drops the lock: the block is told by a note."""
    injector = FaultInjector(registry().store("default"))
    with lock("a", wait=0):
        injector.cut()
        raise ERROR[0]


def fail_of_a_loss(patch: pytest.MonkeyPatch) -> None:
    with lock("a", wait=0):
        revoke_the_lock()
        raise ERROR[0]


def fail_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    """A driver's bug at the second of two names; the first cannot be given back."""
    injector = FaultInjector(registry().store("default"))
    store = registry().store("default")
    port = store.port(THREADS)
    acquire = port.acquire

    async def failing(claim: Claim, wait: float | None) -> Granted | Busy:
        if claim.name.endswith("a"):
            return await acquire(claim, wait)
        injector.cut()
        raise ERROR[0]

    patch.setattr(port, "acquire", failing, raising=False)
    patch.setattr(store, "port", lambda runtime: port)
    with lock(["a", "b"], wait=SOON):
        pass


ERROR: list[Exception] = []


@pytest.mark.parametrize("kind", [Frozen, OddNotes])
@pytest.mark.parametrize("fail", [fail_at_the_release, fail_of_a_loss, fail_before_it_begins])
def test_an_exception_that_takes_no_note_is_raised_as_it_is(
    fail: Callable[[pytest.MonkeyPatch], None],
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was to be noted hid it."""
    ERROR[:] = [error := kind()]
    with pytest.raises(kind) as caught:
        fail(monkeypatch)
    assert caught.value is error
    [noted] = [record for record in caplog.records if f"{kind.__name__} takes no note" in record.getMessage()]
    assert vars(noted)["lock_event"] == ("lost" if fail is fail_of_a_loss else "error")
    assert vars(noted)["lock_name"].startswith("disLock:a")


def test_an_attachment_that_cannot_be_undone_says_why_it_failed(
    injected: FaultInjector, caplog: pytest.LogCaptureFixture
) -> None:
    ticket = unrelated("c").detach()
    injected.lose("attach", "answer", "answer")
    injected.lose("cancel", "request", "request")
    with caplog.at_level(logging.INFO, "distlock_web"), pytest.raises(BackendUnavailable):
        attach(ticket)
    undone = "Lock disLock:c: a claim could not be cancelled, it ends within its lease: The test has lost a request."
    assert undone in caplog.messages


def test_a_bug_while_giving_back_does_not_hide_the_bodys_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = registry().store("default").port(THREADS)

    async def broken(*args: object) -> None:
        raise LookupError("a bug")

    with pytest.raises(ZeroDivisionError) as caught, lock("a"):
        monkeypatch.setattr(port, "release", broken)
        raise ZeroDivisionError
    assert "a bug" in caught.value.__notes__[0]
    assert "in broken" in caplog.text, "its traceback is in the log"


@pytest.mark.parametrize("key", ["a", "b"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [None, ZeroDivisionError])
@pytest.mark.parametrize("verb", ["release", "cancel"])
def test_a_bug_at_one_lock_keeps_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, key: str, asynchronous: bool, error: type[Exception] | None, verb: str
) -> None:
    """Those behind it were not given back at the second try either, and were held for their lease."""
    sent = getattr(MemoryPort, verb)

    async def broken(port: MemoryPort, claim: Claim, *args: Any) -> Any:
        if claim.name == f"disLock:{key}":
            raise LookupError("a bug")
        return await sent(port, claim, *args)

    def work(lease: Lease) -> None:
        if verb == "cancel":  # what an extension may have left, whose answer has not come
            (lost,) = (hold for hold in scope_of(lease).holds if hold.name == f"disLock:{key}")
            lost.asks(now(), 600)
            lost.lose("unreachable")
        if error is not None:
            raise error

    async def in_tasks() -> None:
        async with lock(["a", "b"]) as lease:
            work(lease)

    def in_a_thread() -> None:
        with lock(["a", "b"]) as lease:
            work(lease)

    monkeypatch.setattr(MemoryPort, verb, broken)
    with pytest.raises(error or LookupError, match=None if error else "a bug"):
        asyncio.run(in_tasks()) if asynchronous else in_a_thread()
    assert [line.name for line in drive(registry().store("default").port(THREADS).inspect())] == [f"disLock:{key}"]


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        (LookupError, LookupError, "b"),
        (LookupError, BackendUnavailable, "a"),
        (BackendUnavailable, LookupError, "b"),
    ],
)
def test_of_two_bugs_the_first_is_raised_and_none_is_hidden_by_an_outage(
    monkeypatch: pytest.MonkeyPatch, a: type[Exception], b: type[Exception], first: str
) -> None:
    async def broken(port: MemoryPort, claim: Claim, *args: object) -> None:
        raise (a if claim.name == "disLock:a" else b)(f"at {claim.name}")

    with pytest.raises(LookupError, match=f"at disLock:{first}"), lock(["a", "b"]):
        monkeypatch.setattr(MemoryPort, "release", broken)


# A loss that is noticed late ----------------------------------------------------------------------------------------


def lost_then_released(how: str, injector: FaultInjector) -> None:
    """The lock is gone, and the answer to the first release does not come."""
    store = registry().store("default")
    with lock("a", expire=60) as lease:
        port = store.port(THREADS)
        claim = scope_of(lease).holds[0].claim
        if how == "revoked":
            assert drive(port.revoke(claim.name, lease.fence or 0))
        else:
            drive(port.cancel(claim))  # as if the store had lost its data
            drive(port.cancel(claim._replace(token=Token("other"))))
            store.backend._backend._table.locks.clear()  # type: ignore[attr-defined]
        if how == "taken":
            assert isinstance(drive(port.acquire(claim._replace(token=Token("another")), 0)), Granted)
        injector.lose("release", "request")


def test_what_was_taken_by_force_is_said_though_the_first_release_had_no_answer() -> None:
    injector = FaultInjector(registry().store("default"))
    with pytest.raises(LeaseLost) as caught:
        lost_then_released("revoked", injector)
    assert caught.value.reason == "revoked"


@pytest.mark.parametrize("how", ["expired", "taken"])
def test_what_is_not_known_is_said_once(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may have been the first release: that is no loss. It may have been one: that is not to be passed over."""
    injector = FaultInjector(registry().store("default"))
    lost_then_released(how, injector)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "Most likely it was released" in told[0].getMessage()


def test_of_a_release_that_was_interrupted_no_warning_says_that_it_was_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Most often it was. And a store that keeps no records is not given one."""
    sent, release = list[tuple[Any, ...]](), MemoryPort.release

    async def interrupted(port: MemoryPort, *args: Any) -> Any:
        sent.append(args)
        if len(sent) == 1:
            port._table.locks.clear()
            raise KeyboardInterrupt
        return await release(port, *args)

    monkeypatch.setattr(MemoryPort, "release", interrupted)
    with caplog.at_level(logging.INFO, "distlock_web"), pytest.raises(KeyboardInterrupt), lock("a"):
        pass
    assert [len(args) for args in sent] == [2, 2]
    told = [record.levelname for record in caplog.records if "Most likely it was released" in record.getMessage()]
    assert told == ["INFO"]


@pytest.mark.parametrize(("late", "answer"), [(-0.001, "expired"), (0.0, None)])
def test_a_loss_is_one_while_the_first_release_would_still_keep_the_lock(
    late: float, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = scope_of(lock("a").acquire()).holds[0]
    until = 1000.0 + 60.0 - drift(60.0)
    monkeypatch.setattr(ending, "now", lambda: until + late)
    port = registry().store("default").port(THREADS)
    gone = hold.claim._replace(name="gone")
    assert drive(ending._release_again(port, hold, (gone, 60.0), 1000.0, logging.INFO)) == answer


@pytest.mark.parametrize("late", [-0.001, 0.0])
def test_a_release_that_fails_when_the_lease_has_ended_is_a_loss(
    late: float, injected: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LeaseLost) if late == 0.0 else nullcontext() as caught, lock("c") as lease:
        over = scope_of(lease).holds[0].deadline + late
        monkeypatch.setattr(ending, "now", lambda: over)
        injected.cut()
    assert lease.state == ("lost" if late == 0.0 else "released")
    assert caught is None or caught.value.reason == "unreachable"


# Nested -------------------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_a_lock_is_not_busy_that_became_free_while_its_waiter_slept(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told LockBusy of a lock that had been free for seconds, because nobody tells of a lease that ends."""

    async def sleep(port: object, claim: object, busy: Busy, seconds: float) -> Busy:
        await THREADS.parker().park(seconds)
        return busy

    monkeypatch.setattr(MemoryPort, "wait", sleep)
    unrelated("a", expire=0.5)
    assert beside(lock("a", wait=1.0, expire=30).acquire).result(SOON).state == "held"
