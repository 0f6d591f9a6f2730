"""What a refusal says: each field of its error, of its event and of its log record; and what was asked of the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    DistLockError,
    HolderInfo,
    LockBusy,
    NotHeld,
    attach,
    distributed_lockable,
    lock,
    request_scope,
)
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks import events
from distlock_web.locks.engine import REFUSED_PAUSE
from distlock_web.locks.reentry import chain
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import Beside, unrelated
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.usefixtures("memory_store")


class Recorder:
    """A port that notes what the engine asks of it; what the watchdog asks goes another way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = registry().store("default")
        self._port: Any = store.port(THREADS)
        self.asked: list[tuple[Any, ...]] = []
        monkeypatch.setattr(store, "port", lambda _: self)

    def __getattr__(self, verb: str) -> Any:
        def ask(*args: Any) -> Any:
            self.asked.append((verb, *args))
            return getattr(self._port, verb)(*args)

        return ask

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, *_ in self.asked]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture
def injector() -> FaultInjector:
    return FaultInjector(registry().store("default"))


@pytest.fixture
def told() -> Any:
    found: list[events.Event] = []
    listener = events.subscribe(found.append, inline=True)
    yield found
    events.unsubscribe(listener)


def apart(call: Callable[[], Any], request: str = "") -> Any:
    """Called by nobody that the test is, in a request of its own."""

    def work() -> Any:
        with request_scope(request or None):
            return call()

    return Context().run(work)


def refused(call: Callable[[], Any], request: str = "") -> Any:
    with pytest.raises(DistLockError) as caught:
        apart(call, request)
    return caught.value


# The error -----------------------------------------------------------------------------------------------------------


def test_who_has_it_and_what_was_asked_for() -> None:
    for _ in range(2):
        apart(lock("a", limit=2, expire=LONG).acquire, "r-1")
    error = refused(lock("a", limit=3).acquire)
    assert (error.name, error.limit, error.full, error.record) == ("disLock:a", 3, False, None)
    assert 0 < error.retry_after <= LONG
    assert 0 <= error.held_for < 5
    assert error.holder.request_id == "r-1"
    assert re.search(r"request r-1, for \d\.\d s\.$", str(error))


def test_that_the_queue_is_full(beside: Beside) -> None:
    holder = unrelated("a")
    waiter = beside(lock("a", wait=LONG).acquire)
    eventually(lambda: drive(registry().store("default").port(THREADS).inspect())[0].waiters == 1, "it waits")
    error = refused(lock("a", wait=LONG, max_waiters=1).acquire)
    assert error.full
    assert str(error).endswith(" Nobody else may wait (max_waiters=1).")
    holder.release()
    waiter.result(SOON).release()


@pytest.mark.parametrize(("known", "usual"), [(True, 7.0), (False, 5.0)])
def test_how_long_it_usually_takes_is_the_holders_matter(
    monkeypatch: pytest.MonkeyPatch, known: bool, usual: float
) -> None:
    """By the function of whoever has it; where the store does not say who that is, by the caller's own."""
    times = registry().store("default").hold_times

    @distributed_lockable(key="a")
    def theirs() -> Any:
        return refused(mine)

    @distributed_lockable(key="a")
    def mine() -> None:
        pass

    times.note(f"{__name__}.{theirs.__qualname__}", "", 7.0)
    times.note(f"{__name__}.{mine.__qualname__}", "", 5.0)
    if not known:
        monkeypatch.setattr(HolderInfo, "current", classmethod(lambda *args: ""))
    assert theirs().usual == usual


def test_a_store_that_does_not_say_since_when(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    unrelated("a")
    plain = recorder._port.acquire

    async def acquire(*args: Any) -> Any:
        return (await plain(*args))._replace(held_for=None, holder="")

    monkeypatch.setattr(recorder._port, "acquire", acquire)
    error = refused(lock("a").acquire)
    assert str(error) == "Somebody else holds the lock 'disLock:a'."
    assert error.held_for is None


def test_a_sibling_hears_how_long_the_block_around_it_has_the_lock() -> None:
    with request_scope("r-1"), lock("a", expire=LONG), lock("a"), pytest.raises(LockBusy) as caught:
        # a sibling of the inner block: it has inherited the outer one alone
        _outside_of_the_innermost(lock("a").acquire)
    error = caught.value
    assert error.held_for is not None
    assert 0 <= error.held_for < 5
    assert 0 < error.retry_after <= LONG
    assert error.name == "disLock:a"


def _outside_of_the_innermost(call: Callable[[], object]) -> None:
    inner = chain.current_chain()
    assert inner is not None
    chain.swap_scopes(inner[1])
    try:
        call()
    finally:
        chain.swap_scopes(inner)


@pytest.mark.parametrize("wait", [0, None])
def test_an_own_lease_is_named(wait: float | None) -> None:
    lease = lock("a").acquire()
    with pytest.raises((LockBusy, ConfigurationError)) as caught:
        lock("a", wait=wait).acquire()
    assert caught.value.name == "disLock:a"
    lease.release()


def test_a_ticket_that_was_used_names_its_lock_and_the_receiver_is_the_holder() -> None:
    with request_scope("giver"):
        ticket = lock("a").acquire().detach()
    with request_scope("receiver", "job"):
        lease = attach(ticket)
        [line] = drive(registry().store("default").port(THREADS).inspect())
        assert "receiver" in line.holder
        assert refused(lambda: attach(ticket)).name == "disLock:a"
        assert isinstance(refused(lambda: attach(ticket)), NotHeld)
        lease.release()


# The log record and the event ----------------------------------------------------------------------------------------


def test_a_refusal_and_an_outage_have_log_fields(injector: FaultInjector) -> None:
    unrelated("a")
    assert refused(lock("a").acquire).log_fields["lock_event"] == "busy"
    injector.cut()
    error = refused(lock(["b", "c"]).acquire)
    assert isinstance(error, BackendUnavailable)
    assert (error.log_fields["lock_event"], error.log_fields["lock_name"]) == ("error", "disLock:b, disLock:c")


def test_an_outage_is_told_with_who_asked_for_what(injector: FaultInjector, told: list[events.Event]) -> None:
    injector.cut()
    refused(lock(["b", "c"]).acquire, "r-9")
    [error] = told
    assert (error.kind, error.reason, error.name, error.request_id) == (
        "error",
        "acquire",
        "disLock:b, disLock:c",
        "r-9",
    )


def test_a_call_that_is_let_through_is_told_with_the_reason(injector: FaultInjector, told: list[events.Event]) -> None:
    @distributed_lockable(key="a", on_backend_error="open")
    def work() -> str:
        return "done"

    injector.cut()
    with request_scope("r-9"):
        assert work() == "done"
    [through] = [event for event in told if event.kind == "let_through"]
    assert through.detail == "The test has lost a request."
    assert through.request_id == "r-9"


def test_a_wait_in_vain_is_told_with_who_waited(told: list[events.Event]) -> None:
    unrelated("a")
    with request_scope("r-9"), pytest.raises(LockBusy):
        lock("a", wait=0.02, expire=7).acquire()
    waited, busy = told[1:]
    assert (waited.kind, waited.request_id, busy.kind) == ("waited", "r-9", "busy")
    assert 0 < waited.waited == busy.waited < SOON
    assert (waited.expire, busy.expire) == (7, 7)


# What the store is asked ---------------------------------------------------------------------------------------------


def test_whoever_has_waited_in_vain_asks_once_more_without_a_place(recorder: Recorder) -> None:
    unrelated("a")
    recorder.asked.clear()
    refused(lock("a", wait=0.02).acquire)
    assert recorder.verbs == ["acquire", "wait", "acquire", "cancel"]
    assert recorder.asked[2][2] == 0, "it does not join the queue again"


def test_a_waiter_whose_time_is_nearly_over_does_not_ask_a_silent_store_again(injector: FaultInjector) -> None:
    unrelated("a")
    injector.calls.clear()
    for _ in range(100):
        injector.lose("wait", "request")
    assert isinstance(refused(lock("a", wait=0.2).acquire), BackendUnavailable)
    assert injector.calls.count("wait") == 1


def test_leases_that_have_aged_while_another_was_awaited_are_confirmed(recorder: Recorder, beside: Beside) -> None:
    holder = unrelated("b")
    waiter = beside(lock(["a", "b"], wait=LONG, expire=LONG).acquire)
    eventually(lambda: "wait" in recorder.verbs, "it waits")
    holder.release()
    lease = waiter.result(SOON)
    [(_, claims)] = [asked for asked in recorder.asked if asked[0] == "extend"]
    assert [claim.name for claim in claims] == ["disLock:a", "disLock:b"]
    lease.release()


def test_whoever_is_refused_at_once_while_it_waits_pauses(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pause it would ask thousands of times a second, and no other task of an event loop would run."""
    unrelated("a")
    runtime, paused, answers = type(THREADS), list[float | None](), [True, True]

    class Pausing:
        async def park(self, seconds: float | None) -> bool:
            paused.append(seconds)
            return True

    async def refuse(*args: Any) -> Any:
        if answers:
            answers.pop()
            monkeypatch.setattr(runtime, "parker", lambda _: Pausing())
            raise BackendUnavailable("away")
        raise ConfigurationError("enough")

    monkeypatch.setattr(recorder._port, "wait", refuse)
    with pytest.raises(ConfigurationError):
        Context().run(lock("a", wait=LONG).acquire)
    assert paused == [REFUSED_PAUSE, REFUSED_PAUSE]
