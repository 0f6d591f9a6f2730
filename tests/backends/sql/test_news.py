"""How a waiter hears of a hand-over by another process: by NOTIFY, by asking, and by neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from distlock_web import configure, lock
from distlock_web.backends.sql import news
from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.registry import Registry
from distlock_web.core.runtime import Token, drive, new_token, now
from tests.support.callers import Beside, no_thread, threads
from tests.support.databases import Database
from tests.support.pgbouncer import PgBouncer, pgbouncer_program
from tests.support.proxy import Proxy
from tests.support.requirements import require
from tests.support.waiting import LONG, PATIENCE, SOON, eventually

NAME = "disLock:a"


class Two:
    """Two stores on one database, as two processes have them: neither wakes the other's waiters by itself."""

    def __init__(self, beside: Beside, settings: dict[str, Any], waiting: dict[str, Any] | None = None) -> None:
        self._beside = beside
        self.registries = [Registry({"default": settings}), Registry({"default": waiting or settings})]
        self.holder, self.waiter = (self._port(registry) for registry in self.registries)
        self._held: Claim | None = None

    def _port(self, registry: Registry) -> Port:
        return registry.store("default").backend.sync_port()

    def hold(self) -> None:
        self._held = Claim(NAME, new_token(), LONG)
        assert isinstance(drive(self.holder.acquire(self._held, 0)), Granted)

    def release(self) -> None:
        assert self._held is not None
        drive(self.holder.release(self._held))

    def wait(self, count: int = 1) -> list[Future[Any]]:
        """So many begin to wait, and do."""
        begun = [self._beside(self._wait) for _ in range(count)]
        self.until_queued(count)
        return begun

    def until_queued(self, count: int) -> None:
        eventually(lambda: drive(self.holder.inspect([NAME]))[0].waiters == count, f"{count} wait")

    def _wait(self) -> None:
        claim = Claim(NAME, new_token(), LONG)
        answer = drive(self.waiter.acquire(claim, None))
        while isinstance(answer, Busy):
            answer = drive(self.waiter.wait(claim, answer, None))
        drive(self.waiter.release(claim))

    def close(self) -> None:
        for registry in self.registries:
            registry.close()


def are_served(waiters: list[Future[Any]]) -> None:
    """Sooner than by the end of the lease."""
    for waiter in waiters:
        waiter.result(LONG / 2)


@pytest.fixture
def two(beside: Beside) -> Iterator[Callable[..., Two]]:
    made: list[Two] = []

    def make(*args: Any) -> Two:
        made.append(Two(beside, *args))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def test_a_release_elsewhere_wakes_the_waiter(
    settings: dict[str, Any], two: Callable[..., Two], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it listens it does not ask. The thread ends when nobody waits any more."""
    monkeypatch.setattr(news, "IDLE", 0.05)
    monkeypatch.setattr(news.PostgresListener, "_look", None)
    pair = two(settings)
    for _ in range(2):
        pair.hold()
        waiters = pair.wait()
        assert threads("distlock-sql") == 1
        pair.release()
        are_served(waiters)
        eventually(lambda: threads("distlock-sql") == 0, "it ends")


def test_a_listener_whose_connection_breaks_asks_again(
    postgres_settings: dict[str, Any], make_proxy: Callable[[int], Proxy], two: Callable[..., Two]
) -> None:
    """What was said while it did not listen is not waited for until the lease ends."""
    url = make_url(postgres_settings["LOCATION"])
    proxy = make_proxy(url.port or 0)
    pair = two(postgres_settings, {"LOCATION": str(url.set(port=proxy.port))})
    pair.hold()
    waiters = pair.wait()
    proxy.refuse()
    pair.release()
    proxy.accept()
    are_served(waiters)


def test_a_listener_leaves_a_server_that_takes_no_writes_any_more(
    postgres_settings: dict[str, Any], two: Callable[..., Two]
) -> None:
    """The address leads to another one by now, whose news it did not hear: the old one had kept its connection."""
    pair = two(postgres_settings)
    pair.hold()
    waiters = pair.wait()
    store: Any = pair.registries[1].store("default").backend
    old = store._news._driver
    for lent in store._requests.connections.idle:
        driver = lent.connection
        driver.cursor().execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    another = Claim("disLock:another", new_token(), LONG)
    assert isinstance(drive(pair.waiter.acquire(another, 0)), Granted)
    eventually(lambda: store._news._driver not in (None, old), "it listens anew")
    pair.release()
    are_served(waiters)


@pytest.fixture
def pooler(postgres_locks: Database) -> Iterator[PgBouncer]:
    require("pgbouncer", pgbouncer_program)
    with PgBouncer(postgres_locks.port) as running:
        yield running


@pytest.mark.slow
def test_behind_a_pooler_in_transaction_mode(
    pooler: PgBouncer, postgres_settings: dict[str, Any], two: Callable[..., Two]
) -> None:
    """No prepared statement, no setting of a session: each transaction is on another connection."""
    location = str(make_url(postgres_settings["LOCATION"]).set(port=pooler.port))
    pair = two({"LOCATION": location})
    for number in range(3):
        pair.hold()
        waiters = pair.wait(1 + number)
        pair.release()
        are_served(waiters)
    with pytest.raises(ZeroDivisionError):
        configure({"default": {"LOCATION": location}})
        with lock("b", renew=True) as lease:
            lease.extend()
            raise ZeroDivisionError


def test_without_a_thread_for_the_news_one_waits_all_the_same(
    sqlite_settings: dict[str, Any], two: Callable[..., Two]
) -> None:
    pair = two({**sqlite_settings, "OPTIONS": {"timeout": 10.0}})  # for so long one would wait for the news to begin
    mine = Claim(NAME, new_token(), LONG)
    pair.hold()
    with no_thread("distlock-sql"):
        begun = now()
        busy = drive(pair.waiter.acquire(mine, None))
        assert isinstance(busy, Busy)
        assert now() - begun < 5.0, "nobody waits for news that will not come"
    pair.release()
    assert isinstance(drive(pair.waiter.wait(mine, busy._replace(recheck_after=0.01), None)), Granted)


def test_a_process_that_died_in_the_queue_costs_one_lease(
    sqlite_settings: dict[str, Any], two: Callable[..., Two], beside: Beside
) -> None:
    """However many of it wait: a hand-over that nobody heard of strikes the others of its process."""
    pair = two(sqlite_settings)
    pair.hold()
    for number in range(20):
        drive(pair.holder.acquire(Claim(NAME, Token(f"{'dead' * 4}{number:036d}"), 0.5), None))
    waiter = beside(pair._wait)
    pair.until_queued(21)
    released = now()
    pair.release()
    waiter.result(PATIENCE)
    assert now() - released < 20 * 0.5 / 2


@pytest.mark.parametrize("timeout", [PATIENCE, 2.0], ids=["in time", "late"])
def test_who_waits_before_anybody_listens_hears_of_it_all_the_same(
    postgres_settings: dict[str, Any],
    two: Callable[..., Two],
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    timeout: float,
) -> None:
    """The second joined while the first one's thread connected, was handed the lock and did not hear of it.

    Where connecting takes longer than a waiter waits for it, both join, and are told when it has begun.
    """
    may_listen, listen = threading.Event(), news.PostgresListener._listen

    def late(listener: news.PostgresListener, connection: Any) -> None:
        assert may_listen.wait(PATIENCE)
        listen(listener, connection)

    monkeypatch.setattr(news.PostgresListener, "_listen", late)
    pair = two(postgres_settings, {**postgres_settings, "OPTIONS": {"timeout": timeout}})
    pair.hold()
    waiters = [beside(pair._wait)]
    eventually(lambda: threads("distlock-sql") == 1, "it connects")
    waiters.append(beside(pair._wait))
    if timeout == PATIENCE:
        time.sleep(0.3)  # for it to join, if it does
    else:
        pair.until_queued(2)
    pair.release()
    may_listen.set()
    are_served(waiters)


def test_whoever_starts_it_waits_no_longer_than_it_takes_to_begin(
    postgres_settings: dict[str, Any], two: Callable[..., Two]
) -> None:
    """Its caller was cancelled meanwhile, so that nobody was expected: the thread ended before it had begun."""
    listener = two(postgres_settings).registries[1].store("default").backend._news  # type: ignore[attr-defined]
    begun = now()
    listener.start(new_token(), SOON)
    assert now() - begun < SOON / 2


def test_who_begins_to_wait_while_the_waiters_are_counted_is_asked_for(
    sqlite_settings: dict[str, Any], two: Callable[..., Two], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for one that waits no more, and slept until the lease was over."""
    pair = two(sqlite_settings)
    backend: Any = pair.registries[1].store("default").backend
    for attempt in range(2):
        pair.hold()
        if attempt == 1:  # the thread stays for a while
            _count_before_the_next_waits(backend, monkeypatch)
        waiters = pair.wait()
        pair.release()
        are_served(waiters)


def _count_before_the_next_waits(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one step of its thread that takes long: it counts now, and goes on when the next one waits."""
    expected, counted = backend._wakeups.expected, threading.Event()

    def late() -> frozenset[str]:
        found: frozenset[str] = expected()
        if not counted.is_set():
            counted.set()
            eventually(lambda: backend._wakeups.waiting(), "the next one waits")
        return found

    eventually(lambda: not backend._wakeups.waiting(), "the last one is forgotten")
    monkeypatch.setattr(backend._wakeups, "expected", late)
    backend._news._worker.wake()
    assert counted.wait(PATIENCE)


def test_a_waiter_asks_again_when_its_store_is_closed(settings: dict[str, Any], two: Callable[..., Two]) -> None:
    """The thread that would have told it has ended: it slept until the lease was over."""
    pair = two(settings)
    pair.hold()
    waiters = pair.wait()
    pair.registries[1].close()
    pair.release()
    are_served(waiters)
