"""How a waiter hears of a hand-over by another process: by NOTIFY, by asking, and by neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from distlock_web import configure, lock
from distlock_web.backends.sql import news
from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.registry import Registry, Store
from distlock_web.core.runtime import drive, new_token, now
from tests.support.callers import Beside, no_thread, threads
from tests.support.databases import Database
from tests.support.pgbouncer import PgBouncer, pgbouncer_program
from tests.support.proxy import Proxy
from tests.support.requirements import require
from tests.support.waiting import LONG, PATIENCE, SLACK, SOON, eventually

NAME = "disLock:a"


@pytest.fixture
def pooler(postgres_locks: Database) -> Iterator[PgBouncer]:
    require("pgbouncer", pgbouncer_program)
    with PgBouncer(postgres_locks.port) as running:
        yield running


class Two:
    """Two stores on one database, as two processes have them: neither wakes the other's waiters by itself."""

    def __init__(self, settings: dict[str, Any], waiting: dict[str, Any] | None = None) -> None:
        self.registries = [Registry({"default": settings}), Registry({"default": waiting or settings})]
        self.holder, self.waiter = (registry.store("default") for registry in self.registries)

    def port(self, store: Store) -> Port:
        return store.backend.sync_port()

    def hold(self) -> Claim:
        claim = Claim(NAME, new_token(), LONG)
        assert isinstance(drive(self.port(self.holder).acquire(claim, 0)), Granted)
        return claim

    def wait(self) -> float:
        """Wait for the lock; when it was had."""
        claim, port = Claim(NAME, new_token(), LONG), self.port(self.waiter)
        answer = drive(port.acquire(claim, None))
        while isinstance(answer, Busy):
            answer = drive(port.wait(claim, answer, None))
        had = now()
        drive(port.release(claim))
        return had

    def until_queued(self) -> None:
        eventually(lambda: drive(self.port(self.holder).inspect([NAME]))[0].waiters == 1, "it waits")

    def close(self) -> None:
        for registry in self.registries:
            registry.close()


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Callable[..., Two]]:
    made: list[Two] = []

    def make(*args: Any) -> Two:
        made.append(Two(*args))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_a_release_elsewhere_wakes_the_waiter(
    kind: str, request: pytest.FixtureRequest, two: Callable[..., Two], beside: Beside
) -> None:
    pair = two(request.getfixturevalue(f"{kind}_settings"))
    holder = pair.hold()
    waiter = beside(pair.wait)
    pair.until_queued()
    released = now()
    drive(pair.port(pair.holder).release(holder))
    assert waiter.result(PATIENCE) - released < SLACK, "the lease would have lasted a minute"


def test_with_listen_nobody_asks(
    postgres_settings: dict[str, Any], two: Callable[..., Two], beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news.Poller, "_look", None)
    pair = two(postgres_settings)
    holder = pair.hold()
    waiter = beside(pair.wait)
    pair.until_queued()
    drive(pair.port(pair.holder).release(holder))
    waiter.result(PATIENCE)


def test_a_listener_whose_connection_breaks_asks_again(
    postgres_settings: dict[str, Any], make_proxy: Callable[[int], Proxy], two: Callable[..., Two], beside: Beside
) -> None:
    """What was said while it did not listen is not waited for until the lease ends."""
    url = make_url(postgres_settings["LOCATION"])
    proxy = make_proxy(url.port or 0)
    pair = two(postgres_settings, {"LOCATION": str(url.set(port=proxy.port))})
    holder = pair.hold()
    waiter = beside(pair.wait)
    pair.until_queued()
    proxy.refuse()
    drive(pair.port(pair.holder).release(holder))
    proxy.accept()
    waiter.result(PATIENCE / 2)  # less than the lease


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"listen": False}, {"listen": True}], ids=["asked", "never", "forced"])
def test_behind_a_pooler_in_transaction_mode(
    pooler: PgBouncer, postgres_settings: dict[str, Any], two: Callable[..., Two], beside: Beside, options: Any
) -> None:
    """No prepared statement, no setting of a session: each transaction is on another connection."""
    location = str(make_url(postgres_settings["LOCATION"]).set(port=pooler.port))
    pair = two({"LOCATION": location, "OPTIONS": options})
    for number in range(3):
        holder = pair.hold()
        if options.get("listen"):
            drive(pair.port(pair.holder).release(holder))
            continue  # whether anything is heard there is chance
        waiters = [beside(pair.wait) for _ in range(1 + number)]
        eventually(lambda: drive(pair.port(pair.holder).inspect([NAME]))[0].waiters == len(waiters), "they wait")  # noqa: B023
        released = now()
        drive(pair.port(pair.holder).release(holder))
        for waiter in waiters:
            assert waiter.result(PATIENCE) - released < LONG / 2
    with pytest.raises(ZeroDivisionError):
        configure({"default": {"LOCATION": location}})
        with lock("b", renew=True) as lease:
            lease.extend()
            raise ZeroDivisionError


def test_the_thread_ends_when_nobody_waits(
    sqlite_settings: dict[str, Any], two: Callable[..., Two], beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "IDLE", 0.05)
    pair = two(sqlite_settings)
    for _ in range(2):
        holder = pair.hold()
        waiter = beside(pair.wait)
        pair.until_queued()
        assert threads("distlock-sql") == 1
        drive(pair.port(pair.holder).release(holder))
        waiter.result(PATIENCE)
        eventually(lambda: threads("distlock-sql") == 0, "it ends")


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_an_error_that_nobody_expects_ends_no_news(
    kind: str,
    request: pytest.FixtureRequest,
    two: Callable[..., Two],
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread died of it, was taken for alive, and every later waiter slept until the lease was over."""
    pair = two(request.getfixturevalue(f"{kind}_settings"))
    failures: list[Exception] = [MemoryError(), ValueError("a driver's own")]
    listen, look = news.Listener._listen, news.Poller._look

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if failures:
                raise failures.pop()
            return original(*args)

        return call

    monkeypatch.setattr(news.Listener, "_listen", failing(listen))
    monkeypatch.setattr(news.Poller, "_look", failing(look))
    for _ in range(2):
        holder = pair.hold()
        waiter = beside(pair.wait)
        pair.until_queued()
        eventually(lambda: not failures, "it has failed")
        drive(pair.port(pair.holder).release(holder))
        waiter.result(PATIENCE / 2)  # less than the lease


def test_without_a_thread_for_the_news_one_waits_all_the_same(
    sqlite_settings: dict[str, Any], two: Callable[..., Two]
) -> None:
    pair = two({**sqlite_settings, "OPTIONS": {"timeout": 10.0}})  # for so long one would wait for the news to begin
    holder, mine = pair.hold(), Claim(NAME, new_token(), LONG)
    with no_thread("distlock-sql"):
        begun = now()
        busy = drive(pair.port(pair.waiter).acquire(mine, None))
        assert isinstance(busy, Busy)
        assert now() - begun < 5.0, "nobody waits for news that will not come"
    drive(pair.port(pair.holder).release(holder))
    assert isinstance(drive(pair.port(pair.waiter).wait(mine, busy._replace(recheck_after=0.01), None)), Granted)


def test_a_process_that_died_in_the_queue_costs_one_lease(
    sqlite_settings: dict[str, Any], two: Callable[..., Two], beside: Beside
) -> None:
    """However many of it wait: a hand-over that nobody heard of strikes the others of its process."""
    pair = two(sqlite_settings)
    holder, port = pair.hold(), pair.port(pair.holder)
    dead = "dead" * 4
    for number in range(20):
        drive(port.acquire(Claim(NAME, f"{dead}{number:036d}", 0.5), None))
    waiter = beside(pair.wait)
    eventually(lambda: drive(port.inspect([NAME]))[0].waiters == 21, "all wait")
    released = now()
    drive(port.release(holder))
    assert waiter.result(PATIENCE) - released < 20 * 0.5 / 2


@pytest.fixture
def may_listen(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nobody listens before it is set."""
    allowed, listen = threading.Event(), news.Listener._listen

    def late(listener: news.Listener, connection: Any) -> None:
        assert allowed.wait(PATIENCE)
        listen(listener, connection)

    monkeypatch.setattr(news.Listener, "_listen", late)
    return allowed


def test_nobody_joins_a_queue_before_its_news_are_heard(
    postgres_settings: dict[str, Any], two: Callable[..., Two], beside: Beside, may_listen: threading.Event
) -> None:
    """While the first waiter's thread connects, the second would be handed the lock and not hear of it."""
    pair = two(postgres_settings)
    holder = pair.hold()
    waiters = [beside(pair.wait)]
    eventually(lambda: threads("distlock-sql") == 1, "it connects")
    waiters.append(beside(pair.wait))
    time.sleep(0.3)  # for it to join, if it does
    drive(pair.port(pair.holder).release(holder))
    may_listen.set()
    for waiter in waiters:
        waiter.result(PATIENCE / 2)  # less than the lease


def test_who_joined_while_it_could_not_listen_is_told(
    postgres_settings: dict[str, Any], two: Callable[..., Two], beside: Beside, may_listen: threading.Event
) -> None:
    """Its connection took longer than a waiter waits for it."""
    pair = two(postgres_settings, {**postgres_settings, "OPTIONS": {"timeout": 2.0}})
    holder = pair.hold()
    waiter = beside(pair.wait)
    pair.until_queued()
    drive(pair.port(pair.holder).release(holder))
    may_listen.set()
    waiter.result(PATIENCE / 2)  # less than the lease


def test_whoever_starts_it_waits_no_longer_than_it_takes_to_begin(
    postgres_settings: dict[str, Any], two: Callable[..., Two]
) -> None:
    """Its caller was cancelled meanwhile, so that nobody was expected: the thread ended before it had begun."""
    pair = two(postgres_settings)
    listener = pair.waiter.backend._news  # type: ignore[attr-defined]
    begun = now()
    listener.start(new_token(), SOON)
    assert now() - begun < SOON / 2
    eventually(lambda: threads("distlock-sql") == 0, "nobody waits")
