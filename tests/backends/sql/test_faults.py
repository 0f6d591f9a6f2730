"""What only a database does to locks, beside the table in ``tests/faults``: lost commits, rows that others lock."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from distlock_web import BackendUnavailable, DistLockError, LockBusy, configure, lock
from distlock_web.backends.sql.database import Transaction
from distlock_web.backends.sql.pymysql_connection import _PyMySQLConnection
from distlock_web.backends.sql.statement import execute
from distlock_web.backends.sql.tables import key_of
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token, now
from distlock_web.testing.servers import free_port
from tests.support.callers import Beside, unrelated
from tests.support.database_servers import MariaDBServer
from tests.support.proxy import Proxy
from tests.support.stores.sql import end, keep, somebody_elses
from tests.support.waiting import LONG, PATIENCE, SLACK, SOON, eventually

NAME = "disLock:a"


def default_store(settings: dict[str, Any], proxy: Proxy | None = None, **options: Any) -> Any:
    """The backend of the default store, with its tables."""
    url = make_url(settings["LOCATION"])
    location = url.set(port=proxy.port if proxy else url.port).render_as_string(hide_password=False)
    backend = configure({"default": {"LOCATION": location, "OPTIONS": options}}).store("default").backend
    with lock("first"):
        pass
    return backend


def lines() -> list[str]:
    return [line.name for line in drive(registry().store("default").backend.sync_port().inspect())]


def can_take(key: str) -> bool:
    with suppress(BackendUnavailable):
        unrelated(key).release()
        return True
    return False


@pytest.fixture
def proxy(server_settings: dict[str, Any], make_proxy: Callable[[int], Proxy]) -> Proxy:
    return make_proxy(make_url(server_settings["LOCATION"]).port or 0)


@pytest.fixture
def database(server_settings: dict[str, Any]) -> Iterator[Connection]:
    with somebody_elses(server_settings) as connection:
        yield connection


def test_a_commit_that_is_still_on_its_way_is_undone_all_the_same(
    server_settings: dict[str, Any], database: Connection, beside: Beside
) -> None:
    """The cancellation found no row of a name that nobody had used, and the lock was held for nobody, to its end."""
    backend = default_store(server_settings)
    mine, tables = Claim(NAME, new_token(), LONG), backend._tables
    clock = int(database.exec_driver_sql(tables.clock_and_floor.text).scalar() or 0)
    taken = {
        "name_key": key_of(NAME), "name": NAME, "token": mine.token, "state": "held", "fence": clock, "since": clock,
        "expires_at": clock + int(LONG * 1e6), "holder": "", "released": "", "revoked": "", "queued": 0,
    }  # fmt: skip
    database.exec_driver_sql("BEGIN")
    database.execute(text(tables.insert.text), taken)
    cancelling = beside(lambda: drive(backend.sync_port().cancel(mine)))
    with suppress(TimeoutError):
        cancelling.result(0.3)
    database.exec_driver_sql("COMMIT")
    cancelling.result(PATIENCE)
    assert can_take("a")
    assert lines() == []


@pytest.mark.slow
def test_a_connection_that_was_not_answered_is_closed_when_that_is_said(server_settings: dict[str, Any]) -> None:
    """A driver's error had the half-open one in its frames, in a circle: each try left one, until garbage came."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = make_url(server_settings["LOCATION"]).set(port=silent.getsockname()[1])
        location = url.render_as_string(hide_password=False)
        configure({"default": {"LOCATION": location, "OPTIONS": {"timeout": 1.5}}})
        gc.disable()
        try:
            with pytest.raises(BackendUnavailable):
                unrelated("a")
            accepted, _ = silent.accept()
            with accepted:
                accepted.settimeout(SOON)
                while accepted.recv(4096):
                    pass
        finally:
            gc.enable()


# Commits that hang ----------------------------------------------------------------------------------------------------


@pytest.fixture
def administration(postgres_settings: dict[str, Any]) -> Iterator[Connection]:
    """Of the PostgreSQL that the default store is on. It has a standby again in the end."""
    default_store(postgres_settings, timeout=0.5, max_connections=4)
    with somebody_elses(postgres_settings) as connection:
        yield connection
        await_standby(connection, "")


def await_standby(administration: Connection, name: str) -> None:
    """A COMMIT waits for the standby of this name, as soon as the server's processes have read it."""
    administration.execute(text(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'"))
    administration.execute(text("SELECT pg_reload_conf()"))


@pytest.mark.slow
def test_commits_that_hang_cost_the_server_no_more_connections_than_the_pools_have(
    administration: Connection, beside: Beside
) -> None:
    """A read was answered, so that the silence was over: each request left one more COMMIT, to the server's last."""
    renewed = unrelated("renewed", expire=1.5, renew=True, on_lost="warn")
    await_standby(administration, "gone")
    over = now() + 6

    def try_all_the_time(number: int) -> None:
        while now() < over:
            with suppress(BackendUnavailable, LockBusy):  # busy: the lock is not undone yet
                unrelated(f"order:{number}").release()
            time.sleep(0.02)

    trying = [beside(try_all_the_time, number) for number in range(8)]
    hang, most = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), 0
    while now() < over:
        most = max(most, administration.scalar(hang) or 0)
        time.sleep(0.05)
    for thread in trying:
        thread.result(PATIENCE)
    assert 0 < most <= 4 + 2 + 2 + 1, "those of requests, of renewals, of the reserve, and the one that asks"
    await_standby(administration, "")
    eventually(lambda: can_take("b"), "the standby is back", SOON)
    with suppress(DistLockError):  # it is lost by then, perhaps
        renewed.release()


@pytest.mark.parametrize("closed", ["before", "meanwhile", "after"])
def test_a_commit_that_hangs_is_closed_with_its_store(
    postgres_settings: dict[str, Any],
    make_proxy: Callable[[int], Proxy],
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    closed: str,
) -> None:
    """It was kept for the next use, which never came: a process that ended its store had one connection left.

    Until then it keeps its place, whatever else is given up.
    """
    proxy = make_proxy(make_url(postgres_settings["LOCATION"]).port or 0)
    backend, asked, hanging, commit = (
        default_store(postgres_settings, proxy, timeout=1.0),
        Event(),
        [],
        Transaction.commit,
    )
    configured = registry()

    def hang(self: Transaction) -> None:
        proxy.swallow()
        if closed == "after":
            self._database._give_up_hanging()  # as another thread does, when the one before has been answered
        hanging.append(self._connection)
        asked.set()
        commit(self)

    [renewed] = hold(backend, 1)
    if closed == "before":
        configured.close()
    monkeypatch.setattr(Transaction, "commit", hang)
    renewing = beside(lambda: drive(backend.renewal_port().extend([renewed._replace(expire=2 * LONG)], 0.5)))
    assert asked.wait(PATIENCE)
    if closed == "meanwhile":
        configured.close()
    with pytest.raises(BackendUnavailable):
        renewing.result(PATIENCE)
    if closed == "after":
        assert not hanging[0].closed, "it keeps its place"
        configured.close()
    eventually(lambda: hanging[0].closed, "it is closed", SOON)
    assert backend is not None, "nor is it garbage"


# Others in the way ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_row_that_somebody_keeps_locked_is_said_in_bounded_time(
    server_settings: dict[str, Any], database: Connection
) -> None:
    default_store(server_settings, timeout=1.5)
    keep(database, "disLock:first")
    begun = now()
    with pytest.raises(BackendUnavailable, match="another transaction does not end"), lock("first"):
        pass
    assert now() - begun < SLACK
    assert can_take("another name")
    end(database)
    assert can_take("first")


@pytest.mark.slow
def test_those_that_want_a_lock_keep_nobody_from_releasing_another(
    server_settings: dict[str, Any], database: Connection, beside: Beside
) -> None:
    """All connections wait for a row that somebody keeps locked."""
    backend = default_store(server_settings, max_connections=2, pool_timeout=0.1)
    keep(database, "disLock:first")
    lease, over = unrelated("a"), threading.Event()

    def want() -> None:
        while not over.is_set():
            with suppress(BackendUnavailable, LockBusy):
                unrelated("first").release()

    wanting = [beside(want) for _ in range(6)]
    eventually(lambda: backend._requests.connections.in_use == 2, "all are in use")
    try:
        lease.extend()
        lease.release()
    finally:
        over.set()
        end(database)
    for thread in wanting:
        thread.result(PATIENCE)
    assert lines() == []


@pytest.mark.timing
@pytest.mark.slow
def test_those_that_have_a_lock_keep_nobody_from_renewing_another(
    server_settings: dict[str, Any], database: Connection, beside: Beside
) -> None:
    """All connections wait for rows that somebody keeps locked: those for releases and extensions, too."""
    default_store(server_settings, max_connections=1, pool_timeout=0.1)
    stuck = [unrelated(f"stuck:{number}") for number in range(40)]
    renewed = unrelated("renewed", expire=4.0, renew=True, on_lost="warn")
    keep(database, *[lease.name for lease in stuck])
    over = now() + 7

    def extend(lease: Any) -> None:
        while now() < over:
            with suppress(BackendUnavailable):
                lease.extend()

    extending = [beside(extend, lease) for lease in stuck]
    for thread in extending:
        thread.result(PATIENCE)
    end(database)
    assert renewed.state == "held"
    for lease in (*stuck, renewed):
        lease.release()


def hold(backend: Any, count: int) -> list[Claim]:
    claims = [Claim(f"{NAME}:{number}", new_token(), LONG) for number in range(count)]
    for claim in claims:
        assert isinstance(drive(backend.sync_port().acquire(claim, 0)), Granted)
    return claims


def test_a_row_that_somebody_keeps_locked_ends_the_renewal_of_its_own_lease_only(
    server_settings: dict[str, Any], database: Connection
) -> None:
    """The watchdog renews many leases in one request: it failed for all of them, until all had ended."""
    backend = default_store(server_settings)
    claims = hold(backend, 9)
    keep(database, claims[4].name)
    answers = drive(backend.renewal_port().extend(claims, 1.0))
    assert isinstance(answers.pop(4), BackendUnavailable)
    assert answers == [None] * 8


def test_leases_whose_rows_are_free_in_time_are_all_renewed(
    server_settings: dict[str, Any], database: Connection, beside: Beside
) -> None:
    backend = default_store(server_settings, timeout=SLACK)
    claims = hold(backend, 9)
    keep(database, claims[4].name)
    renewing = beside(lambda: drive(backend.renewal_port().extend(claims, None)))
    with suppress(TimeoutError):
        renewing.result(0.3)
    end(database)
    assert renewing.result(PATIENCE) == [None] * 9


def test_a_late_renewal_of_a_locked_row_makes_no_silent_server(
    server_settings: dict[str, Any], database: Connection
) -> None:
    """It was given less time than an answer may take: all other requests were refused meanwhile."""
    backend = default_store(server_settings, timeout=SLACK)
    claims = hold(backend, 1)
    keep(database, claims[0].name)
    begun = now()
    with pytest.raises(BackendUnavailable):
        drive(backend.renewal_port().extend(claims, 0.3))
    assert now() - begun < SLACK / 2
    assert backend._outage._in_vain == float("-inf"), "nobody has waited in vain"


def test_a_late_renewal_waits_for_the_file_no_longer_than_it_is_told_to(sqlite_settings: dict[str, Any]) -> None:
    backend = default_store(sqlite_settings, timeout=SLACK)
    claims = hold(backend, 1)
    with somebody_elses(sqlite_settings) as connection:
        keep(connection)
        begun = now()
        with pytest.raises(BackendUnavailable, match="is locked"):
            drive(backend.renewal_port().extend(claims, 0.3))
        assert now() - begun < SLACK / 2
        end(connection)
    assert drive(backend.renewal_port().extend(claims, 0.3)) == [None]


@pytest.mark.slow
def test_a_client_that_stops_in_mid_transaction_does_not_keep(server_settings: dict[str, Any]) -> None:
    """As one that is stopped (SIGSTOP), or whose host has vanished: the server ends its transaction."""
    backend = default_store(server_settings, timeout=1.5)
    with backend._requests.open() as stopped:  # else every later test of this database waits for the row
        execute(stopped, backend._address.dialect.begin(None, 1.5))
        execute(stopped, "SELECT name_key FROM distlock_lease FOR UPDATE")
        eventually(lambda: can_take("first"), "the server has ended it", SOON)


def test_deadlocks_and_races_are_tried_again_inside(server_settings: dict[str, Any], beside: Beside) -> None:
    """Thirty at once want a name that does not exist yet, and a table that does not either."""
    port = configure({"default": server_settings}).store("default").backend.sync_port()
    claims = [Claim(f"new:{number % 3}", new_token(), 30.0) for number in range(30)]
    answers = [beside(lambda claim=claim: drive(port.acquire(claim, 0))) for claim in claims]
    kinds = [type(answer.result(PATIENCE)) for answer in answers]
    assert (kinds.count(Granted), kinds.count(Busy)) == (3, 27)


def test_a_deadlock_is_tried_again_and_not_for_ever(
    server_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    [error] = default_store(server_settings)._address.way.errors
    failing = 2

    def deadlock(connection: Any, statement: str, *rest: Any) -> Any:
        nonlocal failing
        if statement.startswith("UPDATE") and failing:
            failing -= 1
            found = error(1213, "Deadlock found")
            found.sqlstate = "40P01"
            raise found
        return execute(connection, statement, *rest)

    monkeypatch.setattr("distlock_web.backends.sql.database.execute", deadlock)
    with lock("first"):
        assert failing == 0
    failing = 100
    with pytest.raises(BackendUnavailable, match="undid the transaction"):
        unrelated("first")
    failing = 0
    assert lines() == []


def test_a_refusal_of_mariadb_costs_neither_an_ssl_context_nor_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyMySQL makes both for each attempt: eight threads kept each other busy for a second."""
    monkeypatch.setattr("ssl.create_default_context", None)
    monkeypatch.setattr("traceback.format_exc", None)
    configure({"default": {"LOCATION": f"mysql://127.0.0.1:{free_port()}/x"}})
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        unrelated("a")


@pytest.mark.parametrize("connect_args", [{}, {"ssl_disabled": True}, {"unix_socket": "of the server"}])
def test_the_connections_of_one_store_have_one_tls_context(
    mariadb_settings: dict[str, Any],
    mariadb_server: MariaDBServer,
    monkeypatch: pytest.MonkeyPatch,
    beside: Beside,
    connect_args: dict[str, Any],
) -> None:
    """Each made its own, in 50 ms of CPU: eight callers that came together were answered late, and out of order."""
    if "unix_socket" in connect_args:
        connect_args = {"unix_socket": str(Path(mariadb_server.folder, "socket"))}
    made: list[object] = []
    create = ssl.create_default_context

    def counted(**options: Any) -> Any:
        made.append(options)
        return create(**options)

    monkeypatch.setattr("ssl.create_default_context", counted)
    backend = default_store(mariadb_settings, connect_args=connect_args)
    claims = [Claim(f"{NAME}:{number}", new_token(), LONG) for number in range(8)]
    for answer in [beside(lambda each=each: drive(backend.sync_port().acquire(each, 0))) for each in claims]:
        assert isinstance(answer.result(PATIENCE), Granted)
    assert [loss for loss in drive(backend.renewal_port().extend(claims, None)) if loss] == []
    assert len(made) == (0 if "ssl_disabled" in connect_args else 1)


def test_a_certificate_that_was_renewed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl.create_default_context", lambda **_: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    contexts: dict[str, Any] = {}
    file = tmp_path / "ca.pem"
    file.touch()
    several = []
    for age in (1, 1, 2):
        os.utime(file, (age, age))
        connection = _PyMySQLConnection(contexts, ssl_ca=str(file), defer_connect=True)
        several.append(connection.ctx)
    assert several[0] is several[1] is not several[2]
    assert len(contexts) == 1
