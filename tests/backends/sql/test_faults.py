"""What happens to locks when a database fails: lost answers, restarts, freezes, deadlocks, a stopped client."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.engine import make_url

from distlock_web import BackendUnavailable, LockBusy, configure, lock
from distlock_web.backends.sql.tables import key_of
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Store
from distlock_web.core.runtime import drive, new_token, now
from tests.support.callers import Beside, unrelated
from tests.support.database_servers import MariaDBServer, PostgresServer
from tests.support.proxy import Proxy
from tests.support.waiting import LONG, PATIENCE, SLACK, SOON, eventually

NAME = "disLock:a"


@pytest.fixture(params=["postgres", "mariadb"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(f"{request.param}_settings")


@pytest.fixture
def proxy(settings: dict[str, Any], make_proxy: Callable[[int], Proxy]) -> Proxy:
    return make_proxy(make_url(settings["LOCATION"]).port or 0)


@pytest.fixture
def commit(settings: dict[str, Any]) -> bytes:
    """The end of a transaction as it goes over the wire: not a word of its beginning (READ COMMITTED)."""
    return b"COMMIT\0" if settings["LOCATION"].startswith("postgresql") else b"\x03COMMIT"


def store_at(location: str, port: int, **options: Any) -> Store:
    """The default store, on the database of this location, by way of this port; with its tables."""
    url = make_url(location).set(port=port).render_as_string(hide_password=False)
    store = configure({"default": {"LOCATION": url, "OPTIONS": options}}).store("default")
    with lock("first"):
        pass
    return store


def lines(store: Store) -> list[str]:
    return [line.name for line in drive(store.backend.sync_port().inspect())]


# Answers that are lost ------------------------------------------------------------------------------------------------


def test_a_lock_whose_commit_was_not_answered_is_held_once(
    settings: dict[str, Any], proxy: Proxy, commit: bytes
) -> None:
    """The engine asks again, and is told the same."""
    store = store_at(settings["LOCATION"], proxy.port)
    proxy.lose_answer(commit)
    with lock("a") as lease:
        assert proxy.lost == 1
        (line,) = drive(store.backend.sync_port().inspect([NAME]))
        assert line.fence == lease.fence
    assert lines(store) == []


def test_a_release_whose_commit_was_not_answered_is_no_loss(
    settings: dict[str, Any], proxy: Proxy, commit: bytes
) -> None:
    store = store_at(settings["LOCATION"], proxy.port)
    with lock("a"):
        proxy.lose_answer(commit)
    assert proxy.lost == 1
    assert lines(store) == []


def test_a_lock_that_gets_no_answer_at_all_is_undone(settings: dict[str, Any], proxy: Proxy, commit: bytes) -> None:
    store = store_at(settings["LOCATION"], proxy.port)
    for _ in range(2):
        proxy.lose_answer(commit)
    with pytest.raises(BackendUnavailable, match=r"broke the connection|cannot be reached"), lock("a"):
        pass
    assert proxy.lost == 2
    assert lines(store) == []


@pytest.mark.parametrize("statement", [b"SELECT", b"UPDATE"])
def test_a_connection_that_breaks_before_the_commit_has_done_nothing(
    settings: dict[str, Any], proxy: Proxy, statement: bytes
) -> None:
    store = store_at(settings["LOCATION"], proxy.port)
    proxy.lose_answer(statement)
    with lock("first"):
        assert proxy.lost == 1
    assert lines(store) == []


def test_a_commit_that_is_still_on_its_way_is_undone_all_the_same(
    settings: dict[str, Any], database: Connection, beside: Beside
) -> None:
    """The cancellation found no row of a name that nobody had used, and the lock was held for nobody, to its end."""
    store = store_at(settings["LOCATION"], make_url(settings["LOCATION"]).port or 0)
    mine = Claim(NAME, new_token(), LONG)
    tables: Any = store.backend._tables  # type: ignore[attr-defined]
    clock = int(database.scalar(select(tables.clock_and_floor.selected_columns.now)) or 0)
    taken = {
        "name_key": key_of(NAME), "name": NAME, "token": mine.token, "state": "held", "fence": clock, "since": clock,
        "expires_at": clock + int(LONG * 1e6), "holder": "", "released": "", "revoked": "", "queued": 0,
    }  # fmt: skip
    database.execute(tables.lease.insert(), taken)
    cancelling = beside(lambda: drive(store.backend.sync_port().cancel(mine)))
    with suppress(TimeoutError):
        cancelling.result(0.3)
    database.commit()
    cancelling.result(PATIENCE)
    assert lines(store) == []
    with lock("a", wait=0):
        pass


# Restarts and freezes -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One to stop and to freeze."""
    request.getfixturevalue(f"{request.param}_server")  # skips where it is not installed
    with PostgresServer() if request.param == "postgres" else MariaDBServer() as running:
        if request.param == "mariadb":
            engine = create_engine(f"mysql+pymysql://root@127.0.0.1:{running.port}")
            with engine.begin() as connection:
                connection.execute(text("CREATE DATABASE IF NOT EXISTS test"))
            engine.dispose()
        yield running
        signal_all(running, signal.SIGCONT)


def signal_all(server: Any, how: signal.Signals) -> None:
    """To the server and the processes that it has made: PostgreSQL has one for each connection."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (server.pid, *map(int, children)):
        os.kill(pid, how)


@pytest.mark.slow
def test_a_server_restarted_or_frozen_in_mid_hold(server: Any, beside: Beside) -> None:
    """One server for all of it, for it takes its time to make."""
    store = store_at(server.url, server.port, timeout=1.5)
    lease = unrelated("a")
    waiter = beside(unrelated, "a", wait=LONG)
    eventually(lambda: drive(store.backend.sync_port().inspect([NAME]))[0].waiters == 1, "it waits")
    server.stop()
    begun = now()
    with pytest.raises(BackendUnavailable, match=f"127.0.0.1:{server.port}"):
        unrelated("b")
    assert now() - begun < SLACK
    server.start()
    lease.extend()  # on connections that the server has forgotten: nothing was sent on them yet
    assert unrelated("b", expire=1.0).fence
    lease.release()
    handed_over = waiter.result(PATIENCE)
    assert handed_over.fence > lease.fence

    signal_all(server, signal.SIGSTOP)
    begun = now()
    with pytest.raises(BackendUnavailable, match="does not answer"):
        unrelated("c")
    first = now() - begun
    begun = now()
    with pytest.raises(BackendUnavailable, match="asked again meanwhile"):
        unrelated("c")
    assert now() - begun < first, "the next is refused at once"
    assert first < SLACK
    signal_all(server, signal.SIGCONT)
    eventually(lambda: _extends(handed_over), "the server answers again")
    handed_over.release()
    eventually(lambda: NAME not in lines(store), "released")


def _extends(lease: Any) -> bool:
    try:
        lease.extend()
    except BackendUnavailable:
        return False
    return True


# Others in the way --------------------------------------------------------------------------------------------------


@pytest.fixture
def database(settings: dict[str, Any]) -> Iterator[Connection]:
    engine = create_engine(settings["LOCATION"])
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.mark.slow
def test_a_row_that_somebody_keeps_locked_is_said_in_bounded_time(
    settings: dict[str, Any], database: Connection
) -> None:
    port = make_url(settings["LOCATION"]).port or 0
    store_at(settings["LOCATION"], port, timeout=1.5)
    row = {"key": key_of("disLock:first")}
    database.execute(text("SELECT name_key FROM distlock_lease WHERE name_key = :key FOR UPDATE"), row)
    begun = now()
    with pytest.raises(BackendUnavailable, match="another transaction does not end"), lock("first"):
        pass
    assert now() - begun < SLACK
    with lock("another name"):
        pass
    database.rollback()
    with lock("first"):
        pass


@pytest.mark.slow
def test_those_that_want_a_lock_keep_nobody_from_releasing_another(
    settings: dict[str, Any], database: Connection, beside: Beside
) -> None:
    """All connections wait for a row that somebody keeps locked."""
    port = make_url(settings["LOCATION"]).port or 0
    store = store_at(settings["LOCATION"], port, max_connections=2, pool_timeout=0.1)
    row = {"key": key_of("disLock:first")}
    database.execute(text("SELECT name_key FROM distlock_lease WHERE name_key = :key FOR UPDATE"), row)
    lease, over = unrelated("a"), threading.Event()

    def want() -> None:
        while not over.is_set():
            with suppress(BackendUnavailable, LockBusy):
                unrelated("first").release()

    wanting = [beside(want) for _ in range(6)]
    pool: Any = store.backend._requests.connections  # type: ignore[attr-defined]
    eventually(lambda: len(pool._lent) == 2, "all are in use")
    try:
        lease.extend()
        lease.release()
    finally:
        over.set()
        database.rollback()
    for thread in wanting:
        thread.result(PATIENCE)
    assert lines(store) == []


@pytest.mark.slow
def test_a_client_that_stops_in_mid_transaction_does_not_keep_the_row(settings: dict[str, Any]) -> None:
    """As one that is stopped (SIGSTOP), or whose host has vanished: the server ends its transaction."""
    stop_in_mid_transaction(settings)


@pytest.mark.slow
def test_nor_does_it_on_a_mysql(mariadb_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ends silent connections, and not transactions: of one that was only idle nobody notices."""
    monkeypatch.setattr("pymysql.connections.Connection.get_server_info", lambda connection: "8.4.0")
    monkeypatch.setattr("distlock_web.backends.sql.dialects.MYSQL_SILENCE", 1)
    stop_in_mid_transaction(mariadb_settings)
    time.sleep(2)
    with lock("first"):
        pass


def stop_in_mid_transaction(settings: dict[str, Any]) -> None:
    port = make_url(settings["LOCATION"]).port or 0
    store = store_at(settings["LOCATION"], port, timeout=1.5)
    requests = store.backend._requests  # type: ignore[attr-defined]
    stopped = requests.engine.connect()
    stopped.exec_driver_sql(requests.address.dialect.begin)
    stopped.execute(text("SELECT name_key FROM distlock_lease FOR UPDATE"))
    begun = now()

    def taken() -> bool:
        try:
            with lock("first"):
                return True
        except BackendUnavailable:
            return False

    try:
        eventually(taken, "the server has ended it")
        assert now() - begun < SOON
    finally:  # else every later test of this database waits for the row
        stopped.invalidate()
        stopped.close()


def test_deadlocks_and_races_are_tried_again_inside(settings: dict[str, Any], beside: Beside) -> None:
    """Thirty at once want a name that does not exist yet, and a table that does not either."""
    registry = configure({"default": settings})
    port = registry.store("default").backend.sync_port()
    claims = [Claim(f"new:{number % 3}", new_token(), 30.0) for number in range(30)]
    answers = [beside(lambda claim=claim: drive(port.acquire(claim, 0))) for claim in claims]
    kinds = [type(answer.result(PATIENCE)) for answer in answers]
    assert (kinds.count(Granted), kinds.count(Busy)) == (3, 27)


def test_a_deadlock_is_tried_again_and_not_for_ever(settings: dict[str, Any]) -> None:
    store = store_at(settings["LOCATION"], make_url(settings["LOCATION"]).port or 0)
    engine = store.backend._requests.engine  # type: ignore[attr-defined]
    failing = 2

    def deadlock(cursor: Any, statement: str, *rest: Any) -> None:
        nonlocal failing
        if statement.startswith("UPDATE") and failing:
            failing -= 1
            error = engine.dialect.loaded_dbapi.OperationalError(1213, "Deadlock found")
            error.sqlstate = "40P01"
            raise error

    event.listen(engine, "do_execute", deadlock)
    with lock("first"):
        assert failing == 0
    failing = 100
    with pytest.raises(BackendUnavailable, match="undid the transaction"):
        unrelated("first")
    failing = 0
    assert lines(store) == []
