"""One thread renews every lease of the process, and tells of every loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.core import worker
from distlock_web.core.backend import Claim
from distlock_web.core.registry import Store
from distlock_web.core.runtime import now
from distlock_web.locks import events, watchdog
from distlock_web.locks.lease import scope_of
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import no_thread, unrelated
from tests.support.renewals import look_now, renewed_now
from tests.support.revoking import revoke_the_lock
from tests.support.waiting import LONG

TTL = 0.9  # a machine that is busy may stand still for half a second


@pytest.fixture(autouse=True)
def injector(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultInjector]:
    monkeypatch.setattr(watchdog, "IDLE_TIMEOUT", 0.02)
    monkeypatch.setattr(watchdog, "_watchdogs", WeakKeyDictionary())  # those of other tests may linger
    before.extend(threads())
    yield FaultInjector(configure({"default": {"BACKEND": "memory"}}).store("default"))
    wait_until(lambda: not threads())
    before.clear()


before: list[threading.Thread] = []


def threads() -> list[threading.Thread]:
    """The watchdogs that this test has started."""
    return [each for each in threading.enumerate() if each.name == "distlock-watchdog" and each not in before]


def wait_until(condition) -> None:  # type: ignore[no-untyped-def]
    give_up = now() + 20
    while not condition():
        assert now() < give_up, "the awaited state did not come"
        threading.Event().wait(0.002)


def test_a_lease_that_needs_no_care_starts_no_thread() -> None:
    with lock("a"):
        assert threads() == []


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release does not wake it: it notices that all are gone when it looks the next time."""
    monkeypatch.setattr(watchdog, "MAX_SLEEP", 0.02)


@pytest.mark.usefixtures("looks_often")
def test_one_thread_for_all_leases_and_it_ends_with_the_last() -> None:
    leases = [lock(f"key:{number}", expire=10 * LONG, renew=True).acquire() for number in range(50)]
    assert len(threads()) == 1
    for lease in leases:
        lease.release()
    wait_until(lambda: not threads())
    with lock("again", renew=True):
        assert len(threads()) == 1


@pytest.mark.timing
@pytest.mark.slow
def test_leases_due_together_share_a_request(injector: FaultInjector) -> None:
    leases = [lock(f"key:{number}", renew=True, expire=TTL).acquire() for number in range(50)]
    end = now() + 3 * TTL
    wait_until(lambda: now() > end)
    for lease in leases:
        lease.raise_if_lost()
        lease.release()
    # Nine thirds of a lease have passed; one request for each lease would have been 450.
    assert 3 <= injector.calls.count("extend") <= 40


def test_a_bug_in_the_watchdog_does_not_end_it(
    injector: FaultInjector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    renew = watchdog.Watchdog._renew
    failures = [LookupError("a bug of ours")]

    def sometimes(self, items) -> None:  # type: ignore[no-untyped-def]
        if failures:
            raise failures.pop()
        renew(self, items)

    monkeypatch.setattr(watchdog.Watchdog, "_renew", sometimes)
    with lock("a", expire=LONG, renew=True) as lease:
        wait_until(lambda: "a bug of ours" in caplog.text)
        renewed_now(lease)


@pytest.mark.usefixtures("looks_often")
def test_a_thread_that_cannot_be_started_for_one_lease_ends_no_renewal(caplog: pytest.LogCaptureFixture) -> None:
    """Of one dropped stream, in a process without room for a thread more: every lease of the process was lost."""
    alive, gone = threading.Event(), threading.Event()
    alive.set()
    others = [unrelated(f"key:{number}", expire=LONG, renew=True) for number in range(3)]
    stream = unrelated("stream")
    deadline = scope_of(stream).holds[0].deadline
    with no_thread("distlock-abandoned"):
        look = watchdog.renew_while(scope_of(stream), 60, alive=alive.is_set, when_abandoned=gone.set)
        alive.clear()
        look()
        wait_until(lambda: "can't start new thread" in caplog.text)
        for lease in others:
            renewed_now(lease)
        assert scope_of(stream).holds[0].deadline == deadline, "nobody renews it"
    assert not gone.is_set()
    for lease in (stream, *others):
        lease.release()


@pytest.mark.parametrize("keys", ["a", ["a", "b"]])
def test_at_the_end_of_the_program_a_lock_goes_on_without_its_renewal(
    keys: str | list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 starts no thread in ``atexit``: there it was an error, as of a process that has too many threads."""
    monkeypatch.setattr(worker, "_ends", False)
    refused = pytest.raises(RuntimeError, match=r"could not be started \(see the log\)")
    with no_thread("distlock-watchdog"), refused, lock(keys, renew=True):
        pytest.fail("it is not renewed")
    with no_thread("distlock-watchdog", RuntimeError("can't create new thread at interpreter shutdown")):
        with lock(keys, renew=True) as lease:
            lease.raise_if_lost()
        assert lease.state == "released"
    assert fields_of(caplog, "Lock disLock:a is not renewed: the program ends") == {
        "lock_event": "error", "lock_reason": "renew", "lock_name": "disLock:a",
    }  # fmt: skip


def test_a_loss_is_told_though_no_thread_can_be_started_for_it() -> None:
    """``distlock run`` did not end its command."""
    told = threading.Event()
    with no_thread("distlock-on-lost"):
        lease = unrelated("a", expire=LONG, renew=True, on_lost=lambda lost: told.set())
        revoke_the_lock()
        wait_until(lambda: look_now(lease) or told.is_set())
    assert lease.state == "lost"


@pytest.mark.usefixtures("looks_often")
def test_a_holder_that_cannot_be_asked_for_ends_no_renewal(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise LookupError("a bug of an integration")

    with lock("other", expire=LONG, renew=True) as other:
        stream = unrelated("stream")
        deadline = scope_of(stream).holds[0].deadline
        watchdog.renew_while(scope_of(stream), 60, alive=broken, when_abandoned=lambda: None)()
        wait_until(lambda: "a bug of an integration" in caplog.text)
        renewed_now(other)
        assert scope_of(stream).holds[0].deadline == deadline, "nobody renews it"
        stream.release()


def test_it_sleeps_though_others_keep_coming() -> None:
    """It looked at all again for whoever had come meanwhile: with 50,000 leases and more of them coming, for ever."""
    dog, looks = watchdog.Watchdog(), 0

    class Item:
        renew = stopped = False

        def __init__(self, seconds: float) -> None:
            self._due = now() + seconds

        @property
        def due(self) -> float:
            return self._due

    class Looked(Item):
        """While it is looked at another one comes, which is due sooner."""

        @property
        def due(self) -> float:
            nonlocal looks
            looks += 1
            assert looks < 50, "it does not go to sleep"
            dog.add([Item(2.0)])  # type: ignore[list-item]
            return self._due

    class Running:
        """A thread: none is started."""

        runs = True
        woken = 0

        def start(self) -> bool:
            return True

        def wake(self) -> None:
            self.woken += 1

    dog._worker = running = Running()  # type: ignore[assignment]
    dog.add([Item(4.0)])  # type: ignore[list-item]
    dog._watched[Looked(4.0)] = None  # type: ignore[index]
    running.woken = 0
    assert 1.0 < dog._step() <= 2.0, "until the one that came meanwhile is due"
    assert running.woken == 0, "it would look at all of them again"


@pytest.mark.usefixtures("looks_often")
def test_a_lease_is_renewed_by_the_thread_of_the_server_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a Redis Cluster slots move. Where there is no thread more, the one before goes on."""
    at = "a"
    monkeypatch.setattr(Store, "server_of", lambda store, claim: at)
    with lock("mine", expire=LONG, renew=True) as lease:
        dogs = watchdog._watchdogs_of(scope_of(lease).spec.store)

        def looks_after() -> list[object]:
            return [server for server, dog in list(dogs.items()) if dog._watched]

        wait_until(lambda: looks_after() == ["a"])
        with no_thread("distlock-watchdog"):
            at = "b"
            renewed_now(lease)
            assert looks_after() == ["a"]
        renewed_now(lease)
        assert looks_after() == ["b"]
        renewed_now(lease)
    assert looks_after() == []


class Stage:
    """Two servers, each with its watchdog, and one lease that moves: what happens at a moment is said, no thread runs.

    The watchdogs of both are asked to step by hand. ``moments``: what is done there, once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.moments, self.has_threads = "a", dict[str, Callable[[], object]](), True
        monkeypatch.setattr(events, "never_wait_here", lambda: None)  # it is told of this thread for good
        monkeypatch.setattr(Store, "server_of", lambda store, claim: self._server())
        hold = scope_of(unrelated("mine")).holds[0]
        self.item = watchdog.WatchedHold(hold, renew=True)
        # In the order in which they are asked to remove it.
        self.b, self.a = (watchdog._watchdog_of(hold.store, server) for server in "ba")
        for dog in (self.a, self.b):
            dog._worker = Steps(self, dog)  # type: ignore[assignment]
        self.a.add([self.item])
        self.item.due = watchdog.AT_ONCE

    def reached(self, moment: str) -> None:
        self.moments.pop(moment, lambda: None)()

    def _server(self) -> str:
        at = self.at
        self.reached("the server is asked for")
        return at

    def flap(self) -> None:
        """Where it was before it has arrived, and the other thread is quick."""
        self.at = "a"
        self.b._step()

    def remove(self) -> None:
        watchdog._remove([self.item])

    def looked_after(self) -> list[str]:
        return [name for name in "ab" if getattr(self, name)._watched]


class Steps:
    """In place of a worker."""

    runs = True

    def __init__(self, stage: Stage, dog: watchdog.Watchdog) -> None:
        self._stage = stage
        self._dog = dog

    def start(self) -> bool:
        if self._dog is self._stage.a:
            return True
        self._stage.reached("the other one has it")
        return self._stage.has_threads

    def wake(self) -> None:
        """Nobody sleeps."""


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_a_lease_that_is_handed_back_at_once_is_renewed(stage: Stage, injector: FaultInjector) -> None:
    """Each of two threads left it to the other: nobody renewed it, and nobody said so."""
    stage.at, stage.moments["the other one has it"] = "b", stage.flap
    stage.a._step()
    assert stage.looked_after() == ["a"]
    stage.a._step()
    assert injector.calls.count("extend") == 1


def test_a_lease_whose_hand_over_fails_stays(stage: Stage) -> None:
    def broken() -> None:
        raise LookupError("a bug of ours")

    stage.at, stage.moments["the other one has it"] = "b", broken
    stage.a._step()
    assert "a" in stage.looked_after()


@pytest.mark.parametrize("has_threads", [True, False], ids=["handed over", "no thread is left"])
@pytest.mark.parametrize("moment", ["the server is asked for", "the other one has it", "one was passed"])
def test_a_lease_that_is_removed_while_it_is_handed_over_is_renewed_no_more(
    stage: Stage, injector: FaultInjector, monkeypatch: pytest.MonkeyPatch, moment: str, has_threads: bool
) -> None:
    """It came to the other thread after its removal, and was renewed until the process ended."""
    stage.at, stage.has_threads = "b", has_threads
    if moment == "one was passed":
        remove = watchdog.Watchdog.remove

        def passes(dog: watchdog.Watchdog, items: Sequence[watchdog.WatchedHold]) -> None:
            remove(dog, items)
            if dog is stage.b:
                stage.reached(moment)

        stage.moments[moment] = stage.a._step
        monkeypatch.setattr(watchdog.Watchdog, "remove", passes)
        stage.remove()
    else:
        stage.moments[moment] = stage.remove
        stage.a._step()
    assert not stage.moments
    assert stage.looked_after() == []
    assert "extend" not in injector.calls


@pytest.mark.parametrize("when", ["before", "while it is added"])
def test_a_block_that_has_lost_the_one_around_it_is_not_renewed(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It renewed the outermost hold until its own end."""
    with lock("a"):
        scope = scope_of(lock("a", renew=True).acquire())
        scope.let_go()
        add = watchdog.Watchdog.add

        def outlived_first(self: watchdog.Watchdog, items: Sequence[watchdog.WatchedHold]) -> None:
            scope.without(scope.holds[0], "ended")
            add(self, items)

        if when == "before":
            scope.without(scope.holds[0], "ended")
        else:
            monkeypatch.setattr(watchdog.Watchdog, "add", outlived_first)
        watchdog.register(scope)
        assert not watchdog._watchdog_of(scope.spec.store)._watched


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> watchdog.Watchdog:
    """A watchdog that looks when it is told to: no thread runs."""
    monkeypatch.setattr(events, "never_wait_here", lambda: None)  # it is told of this thread for good
    return watchdog.Watchdog()


@pytest.fixture
def no_thread_outlasts_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = worker.Workers.start

    def start_and_wait(workers: worker.Workers[Any]) -> bool:
        started = start(workers)
        wait_until(lambda: not (started and workers.queue) and not workers.runs)
        return started

    monkeypatch.setattr(worker.Workers, "start", start_and_wait)


def due(key: str, **options: Any) -> watchdog.WatchedHold:
    item = watchdog.WatchedHold(scope_of(unrelated(key)).holds[0], renew=True, **options)
    item.due = watchdog.AT_ONCE
    return item


def fields_of(caplog: pytest.LogCaptureFixture, message: str) -> dict[str, Any]:
    """What a program reads of the one line that begins so."""
    [record] = [record for record in caplog.records if record.getMessage().startswith(message)]
    wanted = ("lock_event", "lock_reason", "lock_name", "lock_locks")
    return {name: value for name, value in vars(record).items() if name in wanted}


@pytest.mark.parametrize(("keys", "message"), [("a", "1 lock could not be"), ("ab", "2 locks could not be")])
def test_a_renewal_that_fails_is_logged_once_with_how_many_it_was_for(
    by_hand: watchdog.Watchdog, injector: FaultInjector, caplog: pytest.LogCaptureFixture, keys: str, message: str
) -> None:
    by_hand._keep([due(key) for key in keys])
    injector.cut()
    by_hand._step()
    assert fields_of(caplog, message) == {
        "lock_event": "error", "lock_reason": "renew", "lock_name": "disLock:a", "lock_locks": len(keys),
    }  # fmt: skip


@pytest.mark.usefixtures("no_thread_outlasts_its_start")
def test_a_release_for_one_who_is_gone_that_fails_is_logged_with_its_lock(
    by_hand: watchdog.Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    ran_in: list[str] = []

    def broken() -> None:
        ran_in.append(threading.current_thread().name)
        raise LookupError("a bug of an integration")

    by_hand._keep([due("a", alive=lambda: False, when_abandoned=broken)])
    by_hand._step()
    assert fields_of(caplog, "The release of a lock whose holder is gone failed") == {
        "lock_event": "error", "lock_reason": "release", "lock_name": "disLock:a",
    }  # fmt: skip
    assert ran_in == ["distlock-abandoned"]


@pytest.mark.parametrize("what", ["on_lost", "abandoned"])
def test_ten_thousand_losses_at_once_make_few_threads(
    by_hand: watchdog.Watchdog, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It was a thread for each. One that does not end keeps the others for no longer than there are places."""
    watchdog._watchdog_of(scope_of(unrelated("other")).spec.store)
    many, name = 3 * watchdog.AT_A_TIME, f"distlock-{what.replace('_', '-')}"
    called, most, go_on = list[int](), list[int](), threading.Event()
    monkeypatch.setattr(watchdog.Watchdog, "is_running_here", lambda dog: True)

    def call(number: int, lease: object = None) -> None:
        called.append(number)
        most.append(sum(thread.name == name for thread in threading.enumerate()))
        if number % watchdog.AT_A_TIME:  # the others end at once
            go_on.wait(LONG)

    for number in range(many):
        if what == "on_lost":
            watchdog._call_aside(partial(call, number), scope_of(unrelated(f"key:{number}")))
        else:
            by_hand._keep([due(f"key:{number}", alive=lambda: False, when_abandoned=partial(call, number))])
    by_hand._step()
    wait_until(lambda: len(called) > watchdog.AT_A_TIME)
    go_on.set()
    wait_until(lambda: len(called) == many)
    assert sorted(called) == list(range(many))
    assert max(most) <= 2 * watchdog.AT_A_TIME  # each place may have one that is just ending
    wait_until(lambda: not any(thread.name == name for thread in threading.enumerate()))


def test_a_call_that_ends_its_thread_ends_it_for_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """``on_lost=lambda lease: sys.exit(1)``: of more losses than there are threads the rest was told at the next."""
    monkeypatch.setattr(watchdog, "AT_A_TIME", 2)
    aside, called, go_on = watchdog._Aside("distlock-on-lost"), list[int](), threading.Event()

    def leave(number: int) -> None:
        called.append(number)
        go_on.wait(LONG)
        raise SystemExit(1)

    for number in range(5):
        assert aside.begin(("on_lost", partial(leave, number), {}))
    go_on.set()
    wait_until(lambda: len(called) == 5 and not aside.runs)
    assert caplog.text.count("on_lost failed") == 5


@pytest.mark.parametrize("where", ["in a block", "no thread is left"])
def test_an_on_lost_that_leaves_ends_the_thread_of_its_caller_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def leave(lease: object) -> None:
        raise SystemExit(1)

    scope = scope_of(unrelated("a"))
    watchdog._watchdog_of(scope.spec.store)
    monkeypatch.setattr(watchdog.Watchdog, "is_running_here", lambda dog: where != "in a block")
    with no_thread("distlock-on-lost"), pytest.raises(SystemExit) if where == "in a block" else nullcontext():
        watchdog._call_aside(leave, scope)
    assert ("on_lost failed" in caplog.text) is (where != "in a block")


def test_that_calls_wait_for_a_thread_is_logged_until_one_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With callbacks that never ended, every further loss was kept back for ever, and nothing said so."""
    monkeypatch.setattr(watchdog, "AT_A_TIME", 1)
    aside, begun, go_on = watchdog._Aside("distlock-on-lost"), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait(LONG)

    for busy in (1, 2):
        begun.clear()
        go_on.clear()
        for _ in range(4):
            assert aside.begin(("on_lost", call, {"lock_name": "a"}))
            assert begun.wait(LONG)
        go_on.set()
        wait_until(lambda: not aside.queue and not aside.runs)
        assert caplog.text.count("on_lost waits: each of the 1 threads for such calls is busy.") == busy
    assert {vars(record).get("lock_name") for record in caplog.records} == {"a"}


def test_a_call_that_is_taken_while_no_thread_can_be_started_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was no longer in the queue, which was an error: the release was tried again."""
    called = list[int]()

    def take_and_refuse(workers: worker.Workers[Any]) -> bool:
        workers.step()
        return False

    monkeypatch.setattr(worker.Workers, "start", take_and_refuse)
    assert watchdog._Aside("distlock-abandoned").begin(("A release", partial(called.append, 1), {}))
    assert called == [1]


@pytest.mark.usefixtures("no_thread_outlasts_its_start")
@pytest.mark.parametrize("where", ["in a block", "beside the watchdog", "no thread is left"])
def test_an_on_lost_that_fails_is_logged_with_its_lock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    ran_in: list[str] = []

    def broken(lease: object) -> None:
        ran_in.append(threading.current_thread().name)
        raise LookupError("a bug of a user's")

    scope = scope_of(unrelated("a"))
    watchdog._watchdog_of(scope.spec.store)
    monkeypatch.setattr(watchdog.Watchdog, "is_running_here", lambda dog: where != "in a block")
    with no_thread("distlock-on-lost") if where == "no thread is left" else nullcontext():
        watchdog._call_aside(broken, scope)
    wanted = {"lock_event": "error", "lock_reason": "on_lost", "lock_name": "disLock:a"}
    assert fields_of(caplog, "on_lost failed") == wanted
    if where == "no thread is left":
        assert fields_of(caplog, "on_lost runs in the thread that renews leases") == wanted
        assert "can't start new thread" in caplog.text
    here = threading.current_thread().name
    assert ran_in == ["distlock-on-lost" if where == "beside the watchdog" else here]


def test_a_lease_whose_deadline_passed_while_it_was_asked_for_is_looked_at_next(
    by_hand: watchdog.Watchdog, injector: FaultInjector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder is told of the loss at once; but what fails again and again does not take a whole processor."""
    item = due("a")
    item.due = moment = item.hold.deadline + 1
    monkeypatch.setattr(watchdog, "now", lambda: moment)
    by_hand._postpone([item])
    assert item.due == pytest.approx(moment + 0.001, abs=1e-5)


@pytest.mark.parametrize(("left", "patience"), [(10, 10), (0.01, 0.05), (-1, 0.05)])
def test_an_answer_is_awaited_until_the_first_deadline(
    by_hand: watchdog.Watchdog,
    injector: FaultInjector,
    monkeypatch: pytest.MonkeyPatch,
    left: float,
    patience: float,
) -> None:
    """Longer would keep the other leases of the process from being renewed."""
    items, waited = [due("a"), due("b")], list[float]()

    class Port:
        async def extend(self, claims: Sequence[Claim], timeout: float) -> list[None]:
            waited.append(timeout)
            return [None] * len(claims)

    store = items[0].hold.store
    monkeypatch.setattr(store, "renewal_port", Port)
    moment = min(item.hold.deadline for item in items) - left
    monkeypatch.setattr(watchdog, "now", lambda: moment)
    by_hand._renew(items)
    assert waited == [pytest.approx(patience, abs=1e-6)]


def test_a_long_lease_is_not_waited_for_as_a_short_one_beside_it(
    by_hand: watchdog.Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store that answers, but slowly, it was lost: each time it was asked for together with a short one."""
    short, long = (
        watchdog.WatchedHold(scope_of(unrelated(key, expire=expire)).holds[0], renew=True)
        for key, expire in (("short", LONG), ("long", 100 * LONG))
    )
    asked = list[tuple[list[str], float]]()

    class Port:
        async def extend(self, claims: Sequence[Claim], timeout: float) -> list[BackendUnavailable]:
            asked.append(([claim.name for claim in claims], timeout))
            return [BackendUnavailable("It has not answered in that time.")] * len(claims)

    monkeypatch.setattr(short.hold.store, "renewal_port", Port)
    by_hand._keep([short, long])
    for item in (short, long):
        item.due = watchdog.AT_ONCE
    by_hand._step()
    short.due = watchdog.AT_ONCE
    by_hand._step()  # the long one is due in a while, and fits into no request that is sent now
    assert [names for names, _ in asked] == [["disLock:short"], ["disLock:long"], ["disLock:short"]]
    (_, for_short), (_, for_long), _ = asked
    assert for_long > 50 * for_short


def test_it_rests_while_it_has_nothing_to_look_after(by_hand: watchdog.Watchdog) -> None:
    assert by_hand._is_left() is False
    by_hand._idle_since = now()
    assert 0 < by_hand._step() <= watchdog.IDLE_TIMEOUT


def test_a_lease_comes_to_the_thread_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to another one first: a server that hangs would keep it waiting."""
    added: list[tuple[object, list[str]]] = []
    monkeypatch.setattr(Store, "server_of", lambda store, claim: claim.name[-1])
    monkeypatch.setattr(
        watchdog.Watchdog,
        "add",
        lambda dog, items: added.append((dog._server, [item.hold.name for item in items])),
    )
    watchdog._add([due(key) for key in ("1:a", "2:b", "3:a")])
    assert added == [("a", ["disLock:1:a", "disLock:3:a"]), ("b", ["disLock:2:b"])]
