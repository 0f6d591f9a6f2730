"""The port over blocking verbs: what a task's cancellation leaves running, and threads that are all in use."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from distlock_web import BackendUnavailable
from distlock_web.core.backend import Busy, Capabilities, Claim, Granted, LockInfo, Port, WaiterInfo
from distlock_web.core.errors import ConfigurationError, NotSent
from distlock_web.core.runtime import TASKS, THREADS, Token, drive, new_token
from distlock_web.kit import blocking_port
from distlock_web.kit.blocking_port import (
    ACQUIRING_THREADS,
    HOLDING_THREADS,
    BlockingBackend,
    BlockingPort,
    BlockingVerbs,
    Executors,
)
from distlock_web.kit.wakeups import PLACE, Wakeups, stagger
from tests.support.waiting import PATIENCE


class SlowVerbs(BlockingVerbs):
    """A store that answers when it is allowed to."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.answered: list[str] = []
        self.error: Exception | None = None

    def acquire(self, claim: Claim, join: bool, memo: None) -> Granted | Busy:
        self.asked.release()
        assert self.may_answer.wait(PATIENCE)
        self.answered.append("acquire")
        if self.error is not None:
            raise self.error
        return Granted(1, 0.0)

    def attach(self, claim: Claim, transit: str) -> Granted | None:
        self.acquire(claim, False, None)
        return None

    def detach(self, claim: Claim, transit: str, seconds: float) -> None:
        self.acquire(claim, False, None)

    def cancel(self, claim: Claim) -> None:
        self.answered.append("cancel")

    def release(self, claim: Claim, cooldown: float, record: str | None) -> None:
        self.answered.append("release")

    def extend(self, claims: Sequence[Claim], timeout: float | None) -> list[None]:
        return [None for _ in claims]

    def inspect(self, names: Sequence[str] | None) -> list[LockInfo]:
        return []

    def revoke(self, name: str, fence: int) -> bool:
        return False

    async def until_asked(self) -> None:
        assert await asyncio.to_thread(self.asked.acquire, timeout=PATIENCE)


class Ports:
    def __init__(self) -> None:
        self.verbs = SlowVerbs()
        self.executors = Executors("test")
        wakeups, verbs = Wakeups(), self.verbs
        self.tasks = BlockingPort(verbs, TASKS, wakeups, self.executors)
        self.threads = BlockingPort(verbs, THREADS, wakeups, self.executors)


@pytest.fixture
def ports() -> Iterator[Ports]:
    made = Ports()
    yield made
    made.verbs.may_answer.set()
    made.executors.close()


def a_claim() -> Claim:
    return Claim("a", new_token(), 10.0)


def _acquire(port: BlockingPort, claim: Claim) -> Any:
    return port.acquire(claim, 0)


def _attach(port: BlockingPort, claim: Claim) -> Any:
    return port.attach(claim, "transit")


def _detach(port: BlockingPort, claim: Claim) -> Any:
    return port.detach(claim, "transit", 10.0)


@pytest.mark.parametrize(("take", "token"), [(_acquire, ""), (_attach, ""), (_detach, ""), (_detach, "transit")])
def test_a_cancellation_does_not_overtake_what_it_cancels(ports: Ports, take: Callable[..., Any], token: str) -> None:
    """The thread goes on: it would take the lock after it was cancelled, for nobody; or hand it over, without a ticket.

    ``token``: of the one who cancels, where that is the new owner.
    """

    async def main() -> None:
        claim = a_claim()
        task = asyncio.ensure_future(take(ports.tasks, claim))
        await ports.verbs.until_asked()
        task.cancel()
        await asyncio.wait({task})
        cancelling = asyncio.ensure_future(ports.tasks.cancel(claim._replace(token=Token(token or claim.token))))
        await asyncio.sleep(0.02)
        ports.verbs.may_answer.set()
        await cancelling

    asyncio.run(main())
    assert ports.verbs.answered == ["acquire", "cancel"]


@pytest.mark.parametrize("loop", ["runs", "has ended"])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("take", [_acquire, _attach])
def test_nor_does_that_of_a_coroutine_that_is_closed(
    ports: Ports, take: Callable[..., Any], begun: bool, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Asyncio cancels nothing then: it was asked after that, and took the lock for nobody.

    It is the port alone that is tested where the loop runs: there Python lets no coroutine that is closed wait for its
    undoing. Where the loop has ended the engine cancels as it is done here, by the blocking port.
    """
    others, claim = list[Future[Any]](), a_claim()
    if not begun:  # all threads are in use, of both kinds
        for pool, size in ((ports.executors.acquiring, ACQUIRING_THREADS), (ports.executors.holding, HOLDING_THREADS)):
            others += [pool.submit(ports.verbs.may_answer.wait, PATIENCE) for _ in range(size)]
    coroutine = take(ports.tasks, claim)

    async def main() -> None:
        coroutine.send(None)
        if begun:
            await ports.verbs.until_asked()
        if loop == "runs":
            coroutine.close()

    asyncio.run(main())
    coroutine.close()
    threading.Timer(0.05, ports.verbs.may_answer.set).start()
    drive(ports.threads.cancel(claim))
    wait([*others, *(pool.submit(len, "") for pool in (ports.executors.acquiring, ports.executors.holding))], PATIENCE)
    assert ports.verbs.answered == ["acquire", "cancel"][not begun :]
    assert not [record for record in caplog.records if record.name == "concurrent.futures"]


def test_nor_does_one_that_goes_on_in_another_thread_when_the_loop_ends(ports: Ports) -> None:
    """The first cancellation is cancelled while it waits; the second is the blocking port's."""
    claim = a_claim()

    async def main() -> None:
        task = asyncio.ensure_future(_acquire(ports.tasks, claim))
        await ports.verbs.until_asked()
        task.cancel()
        await asyncio.wait({task})
        cancelling = asyncio.ensure_future(ports.tasks.cancel(claim))
        await asyncio.sleep(0.02)
        cancelling.cancel()
        await asyncio.wait({cancelling})

    asyncio.run(main())
    threading.Timer(0.05, ports.verbs.may_answer.set).start()
    drive(ports.threads.cancel(claim))
    assert ports.verbs.answered == ["acquire", "cancel"]
    assert not ports.executors.interrupted


def test_the_failure_of_an_interrupted_acquisition_is_nobodys(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio would report it as an exception that was never retrieved."""
    ports.verbs.error = BackendUnavailable("gone")

    async def main() -> None:
        claim = a_claim()
        task = asyncio.ensure_future(_acquire(ports.tasks, claim))
        await ports.verbs.until_asked()
        task.cancel()
        await asyncio.wait({task})
        asyncio.get_running_loop().call_later(0.02, ports.verbs.may_answer.set)
        await ports.tasks.cancel(claim)

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(main())
    assert ports.verbs.answered == ["acquire", "cancel"]
    assert not caplog.records


def test_tasks_that_want_a_lock_keep_no_other_from_releasing_one(ports: Ports) -> None:
    """All threads that acquire are stuck, as on a row that is locked: there are others for those that hold."""

    async def main() -> None:
        wanting = [asyncio.ensure_future(_acquire(ports.tasks, a_claim())) for _ in range(2 * ACQUIRING_THREADS)]
        for _ in range(ACQUIRING_THREADS):
            await ports.verbs.until_asked()
        await asyncio.wait_for(ports.tasks.release(a_claim()), PATIENCE / 2)
        assert ports.verbs.answered == ["release"]
        ports.verbs.may_answer.set()
        await asyncio.gather(*wanting)

    asyncio.run(main())


def test_tasks_for_which_no_thread_becomes_free_are_refused(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a store that hangs each would wait for the time-outs of all that are in front of it."""

    async def main() -> list[Any]:
        asked = [asyncio.ensure_future(_acquire(ports.tasks, a_claim())) for _ in range(ACQUIRING_THREADS)]
        for _ in asked:
            await ports.verbs.until_asked()
        monkeypatch.setattr(blocking_port, "MAX_QUEUED", 0.05)
        late = [asyncio.ensure_future(_acquire(ports.tasks, a_claim())) for _ in range(20)]
        await asyncio.sleep(0)  # all of them have begun, before their time passes
        await asyncio.sleep(0.2)
        asked += late
        ports.verbs.may_answer.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(main())
    assert [type(answer) for answer in answers[:ACQUIRING_THREADS]] == [Granted] * ACQUIRING_THREADS
    assert {type(answer) for answer in answers[ACQUIRING_THREADS:]} == {NotSent}, (
        "to ask again is to wait as long again"
    )
    assert ports.verbs.answered == ["acquire"] * ACQUIRING_THREADS, "the store was not asked by them"


def test_where_no_thread_can_be_started_nothing_is_done_later_but_what_a_busy_one_has_begun(ports: Ports) -> None:
    """It took the lock for nobody: the caller was told that there was no thread, and cancelled too early."""
    begins: list[threading.Thread] = []

    class Full(ThreadPoolExecutor):
        def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
            thread = threading.Thread(target=work, args=args)
            if not begins:
                thread.start()  # a busy thread takes it just then
                assert ports.verbs.asked.acquire(timeout=PATIENCE)
            begins.append(thread)
            raise RuntimeError("can't start new thread")

    async def twice() -> None:
        ports.executors.acquiring = Full(1)
        ports.verbs.may_answer.set()
        assert isinstance(await ports.tasks.acquire(a_claim(), 0), Granted)
        with pytest.raises(NotSent, match="No thread could be started"):
            await ports.tasks.acquire(a_claim(), 0)
        begins[1].start()  # the next thread of the pool finds it
        begins[1].join()
        assert ports.verbs.answered == ["acquire"]

    asyncio.run(twice())


def test_a_queue_of_any_length_has_asked_before_another_lease_is_over() -> None:
    assert [stagger(ahead, 1.0) for ahead in range(50)] == [pytest.approx(ahead * PLACE) for ahead in range(50)]
    for ahead in (50, 10_000):
        assert all(0.5 <= stagger(ahead, 1.0) <= 1.0 for _ in range(100))


def test_what_a_waiter_waits_for_is_known_until_it_is_forgotten() -> None:
    wakeups = Wakeups()
    for token, reason in (("one", "this lock"), ("other", "that lock")):
        wakeups.expect(token, THREADS)
        wakeups.note(token, reason)
    wakeups.note("one", "this lock, behind another")
    assert wakeups.waiting() == {"one": "this lock, behind another", "other": "that lock"}
    wakeups.forget("one")
    assert wakeups.waiting() == {"other": "that lock"}


def test_what_is_noted_of_one_that_has_gone_is_dropped() -> None:
    """A thread goes on with the acquisition of a task that was cancelled, and notes that it waits."""
    wakeups = Wakeups()
    wakeups.expect("gone", THREADS)
    wakeups.forget("gone")
    wakeups.note("gone", "a lock")
    assert wakeups.waiting() == {}
    assert wakeups._reasons == {}


class SlowBackend(BlockingBackend):
    capabilities = Capabilities(min_expire=0.01)


def test_who_waits_when_a_backend_is_closed_asks_again() -> None:
    wakeups = Wakeups()
    backend = SlowBackend("test", SlowVerbs(), wakeups)
    parker = wakeups.expect("waiting", THREADS)
    backend.close()
    assert drive(parker.park(0.0))


def test_renewals_have_verbs_of_their_own_where_a_store_says_so() -> None:
    verbs, renewing = (SlowVerbs() for _ in range(2))
    assert SlowBackend("test", verbs, Wakeups()).renewal_port()._verbs is verbs
    backend = SlowBackend("test", verbs, Wakeups(), renewing=renewing)
    assert [port._verbs for port in (backend.sync_port(), backend.async_port())] == [verbs, verbs]
    assert backend.renewal_port()._verbs is renewing
    assert backend.renewal_port().runtime is THREADS


def _verbs(of: type) -> set[str]:
    return {name for name, found in vars(of).items() if inspect.isfunction(found) and not name.startswith("_")}


def test_what_a_port_may_offer_the_verbs_may_offer_and_the_port_asks_them() -> None:
    """One that the port only inherits is a store's no more: it would say for every store that it has none."""
    asked = _verbs(Port) - {"wait"}  # the port's own
    assert "names" in asked
    assert _verbs(BlockingVerbs) == asked
    assert _verbs(BlockingPort) == asked | {"wait"}


class TellingVerbs(SlowVerbs):
    def names(self, limit: int | None) -> tuple[int, list[str]] | None:
        return 3, ["a", "b", "c"][:limit]

    def waiters(self, name: str, limit: int) -> list[WaiterInfo] | None:
        return [WaiterInfo(name, 1.0)][:limit]


@pytest.mark.parametrize("verbs", [SlowVerbs, TellingVerbs])
def test_a_store_on_a_blocking_driver_tells_a_page_of_locks_what_it_can(verbs: type[SlowVerbs]) -> None:
    backend = SlowBackend("test", verbs(), Wakeups())

    async def told(port: BlockingPort) -> object:
        return await port.names(), await port.names(1), await port.waiters("a", 1), await port.waiters("a", 0)

    known: tuple[object, ...] = (3, ["a", "b", "c"]), (3, ["a"]), [WaiterInfo("a", 1.0)], []
    expected = known if verbs is TellingVerbs else (None,) * 4
    assert drive(told(backend.sync_port())) == expected
    assert asyncio.run(told(backend.async_port())) == expected
    backend.close()


@pytest.mark.parametrize("renewing", [False, True])
def test_verbs_that_inherit_nothing_are_refused_when_the_backend_is_made(renewing: bool) -> None:
    """Locks would work, and the page of held locks would ask for what is not there."""

    class Bare:
        pass

    bare: Any = Bare()
    verbs = {"verbs": SlowVerbs(), "renewing": bare} if renewing else {"verbs": bare}
    with pytest.raises(ConfigurationError, match=r"test are of type Bare.* inherit .*blocking_port\.BlockingVerbs\."):
        SlowBackend("test", wakeups=Wakeups(), **verbs)
