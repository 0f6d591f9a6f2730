"""What an error of a database means: whether it is told as an outage, as a setting, or in the database's own words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine import make_url

from distlock_web import BackendUnavailable, ConfigurationError, DistLockError, configure, lock
from distlock_web.backends.sql import schema, verbs
from distlock_web.backends.sql.faults import MYSQL, POSTGRESQL, of_mysql, of_postgresql
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token
from tests.support.callers import Beside
from tests.support.databases import new_database
from tests.support.stores.sql import TABLES, end, keep, somebody_elses
from tests.support.waiting import LONG, PATIENCE, eventually


@pytest.fixture
def administration(settings: dict[str, Any]) -> Iterator[Connection]:
    with somebody_elses(settings) as connection:
        yield connection


def do(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(text(statement))


# The tables -------------------------------------------------------------------------------------------------------


#: What is raised for it; for all other kinds it is BackendUnavailable.
RAISED = {"wrong": ConfigurationError, "no_table": ConfigurationError, "unknown": DistLockError}
#: Codes of each server that are in no table.
UNKNOWN = {"postgres": "22000", "mariadb": "1048"}


@pytest.mark.slow
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_whatever_the_server_says_to_a_write_is_told_as_what_it_is(server: str, request: pytest.FixtureRequest) -> None:
    """A trigger says here what such a server says. A full disk was no outage: a 500, and no ``on_backend_error``."""
    settings = request.getfixturevalue(f"{server}_settings")
    configure({"default": settings})
    with lock("first"):
        pass
    known: dict[str, Any] = {"postgres": POSTGRESQL, "mariadb": MYSQL}
    # Of a class of PostgreSQL's: its first code.
    kinds = {str(code).ljust(len(UNKNOWN[server]), "0"): fault.kind for code, fault in known[server].items()}
    port, wrong = registry().store("default").port(THREADS), {}
    with somebody_elses(settings) as administration:
        do(administration, *TOLD[server])
        for code, kind in {**kinds, UNKNOWN[server]: "unknown"}.items():
            with pytest.raises(DistLockError) as caught:
                drive(port.acquire(Claim(code, new_token(), LONG), 0))
            expected = RAISED.get(kind, BackendUnavailable)
            if not isinstance(caught.value, expected) or (kind == "unknown") != (type(caught.value) is DistLockError):
                wrong[code] = caught.value
        do(administration, UNTOLD[server])
    assert not wrong


#: A trigger that says the code which is the name of the lock.
TOLD = {
    "postgres": (
        "CREATE OR REPLACE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'x' USING ERRCODE = NEW.name; END $$",
        "CREATE TRIGGER told BEFORE INSERT ON distlock_lease FOR EACH ROW EXECUTE FUNCTION told()",
    ),
    "mariadb": (
        "CREATE TRIGGER told BEFORE INSERT ON distlock_lease FOR EACH ROW BEGIN DECLARE number INT; "
        "SET number = NEW.name; SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = number, MESSAGE_TEXT = 'x'; END",
    ),
}
UNTOLD = {"postgres": "DROP TRIGGER told ON distlock_lease", "mariadb": "DROP TRIGGER told"}


def test_each_code_of_the_classes_that_tell_of_the_server_has_a_meaning() -> None:
    """Those of a newer psycopg, too."""
    codes = {
        each.sqlstate for each in vars(psycopg.errors).values() if isinstance(getattr(each, "sqlstate", None), str)
    }
    told = {code for code in codes if code[:2] in ("08", "28", "53", "57", "58")}
    assert len(told) > 20
    assert {code for code in told if of_postgresql(code, "x").kind == "unknown"} == set()


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        # An auditor's trigger that calls a function which is gone was told as a database that is gone.
        ("42883", "function audit(text) does not exist", "unknown"),
        ("42704", 'role "auditor" does not exist', "unknown"),
        ("P0001", "too many clients are late", "unknown"),
        ("", 'connection failed: FATAL: database "x" does not exist', "wrong"),
        ("08P01", "FATAL: no such database: x", "wrong"),
        ("42710", 'type "distlock_lease" already exists', "again"),  # of one that makes the table at the same moment
        ("08P01", "query_wait_timeout", "gone"),
        ("", "server closed the connection unexpectedly", "unknown"),
    ],
)
def test_words_count_only_where_there_is_no_code(code: str, words: str, kind: str) -> None:
    assert of_postgresql(code, words).kind == kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1213, "again"), (3101, "again"), (1412, "again"), (3169, "gone"), (4031, "gone"), (3032, "not_here"),
        (3159, "wrong"), (3572, "locked"), (1062, "again"), (1586, "again"), (3100, "not_here"), (1021, "not_now"),
        # A column that must not be empty read as "others were in its way", after five tries.
        (1048, "unknown"), (1452, "unknown"),
    ],
)  # fmt: skip
def test_what_mysql_says_and_mariadb_does_not(code: int, kind: str) -> None:
    """No MySQL is among the servers of the tests: the numbers are those of its manual."""
    assert of_mysql(code, "what it says").kind == kind


# Another server under the same address ----------------------------------------------------------------------------


def _everything(port: Any, renewals: Any) -> None:
    """Each verb that writes, on each pool."""
    mine = Claim(f"disLock:{new_token()}", new_token(), LONG)
    assert isinstance(drive(port.acquire(mine, 0)), Granted)
    assert list(drive(renewals.extend([mine], None))) == [None]
    assert isinstance(drive(port.acquire(mine._replace(token=new_token()), 0)), Busy)
    assert drive(port.release(mine, 0.0, None)) is None


def test_a_switchover_costs_nobody_a_lock(server_settings: dict[str, Any], beside: Beside) -> None:
    """The old primary takes no writes any more, and the address leads to the new one. The connections to the old one
    were used for as long as the process lived: nine locks of ten were refused."""
    store: Any = configure({"default": server_settings}).store("default").backend
    port, renewals = store.sync_port(), store.renewal_port()
    for each in [beside(lambda: _everything(port, renewals)) for _ in range(4)]:
        each.result(PATIENCE)
    old = [
        lent.connection for pool in (store._requests, store._renewals, store._reserve) for lent in pool.connections.idle
    ]
    for connection in old:
        connection.cursor().execute(_read_only(server_settings))
    for _ in range(3):
        _everything(port, renewals)
    left = [lent for pool in (store._requests, store._renewals) for lent in pool.connections.idle]
    assert not [lent for lent in left if lent.connection in old]


def _read_only(settings: dict[str, Any]) -> str:
    postgres = make_url(settings["LOCATION"]).get_backend_name() == "postgresql"
    return f"SET SESSION {'CHARACTERISTICS AS ' if postgres else ''}TRANSACTION READ ONLY"


def test_a_server_that_stays_read_only_costs_each_request_one_connection(
    server_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again on a fresh connection only if it said so on one that was idle."""
    monkeypatch.setattr(verbs, "PURGE_ONE_IN", sys.maxsize)  # purging may open one more
    store: Any = configure({"default": server_settings}).store("default").backend
    with lock("first"):
        pass
    opened: list[object] = []

    def read_only(connection: Any, connected: Any = store._address.dialect.connected) -> None:
        connected(connection)
        opened.append(connection)
        connection.cursor().execute(_read_only(server_settings))

    monkeypatch.setattr(store._address.dialect, "connected", read_only)
    store._requests.connections.drop()
    for number in range(1, 4):
        with pytest.raises(BackendUnavailable, match="is read-only"):
            drive(store.sync_port().acquire(Claim("disLock:order:7", new_token(), LONG), 0))
        assert len(opened) == number


# A database that nobody has used yet ------------------------------------------------------------------------------


@pytest.fixture
def no_tables(settings: dict[str, Any]) -> dict[str, Any]:
    with somebody_elses(settings) as connection:
        do(connection, *[f"DROP TABLE IF EXISTS {table}" for table in TABLES])
    return settings


@pytest.mark.parametrize("verb", ["done", "inspect", "forget", "revoke", "cancel", "look"])
def test_whatever_is_asked_first_makes_the_tables(no_tables: dict[str, Any], verb: str) -> None:
    """``distlock once list`` told who asked to drop them."""
    store: Any = configure({"default": no_tables}).store("default").backend
    port, mine = store.sync_port(), Claim("disLock:a", new_token(), LONG)
    ask: dict[str, Callable[[], Any]] = {
        "done": lambda: drive(port.done(10)),
        "inspect": lambda: drive(port.inspect()),
        "forget": lambda: drive(port.forget("disLock:a", 1)),
        "revoke": lambda: drive(port.revoke("disLock:a", 1)),
        "cancel": lambda: drive(port.cancel(mine)),
        # What is asked where a claim did not get to its row.
        "look": lambda: store.sync_port()._verbs._look(mine, 0),
    }
    assert not ask[verb]()
    assert drive(port.inspect()) == []


@pytest.fixture(params=["sqlite", "postgres"])  # MariaDB's indexes are part of the table's own statement
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    port = 0 if request.param == "sqlite" else request.getfixturevalue("postgres_server").port
    with new_database(request.param, port, tmp_path) as made:
        yield {"LOCATION": made.sqlalchemy}
        registry().close()


@pytest.mark.parametrize("index", [name for table in schema.TABLES for name, _ in table.indexes])
def test_a_table_has_its_indexes_or_is_not_there(fresh: dict[str, Any], index: str) -> None:
    """Who died between the two statements left a table that was without its index for ever."""
    store = configure({"default": fresh}).store("default").backend
    with somebody_elses(fresh) as connection:
        do(connection, f"CREATE TABLE {index} (a INTEGER)")  # so that the table can be made, and its index cannot
        with pytest.raises(DistLockError):
            store.prepare()
        do(connection, f"DROP TABLE {index}")
        store.prepare()
    with somebody_elses(fresh) as another:
        made = inspect(another)
        assert index in {each["name"] for table in TABLES for each in made.get_indexes(table)}


@pytest.mark.parametrize("verb", ["done", "inspect"])
def test_nor_where_they_are_not_to_be_made(no_tables: dict[str, Any], verb: str) -> None:
    port: Any = configure({"default": {**no_tables, "OPTIONS": {"create": False}}}).store("default").backend.sync_port()
    with pytest.raises(ConfigurationError, match='run "distlock init"'):
        drive(port.done(10) if verb == "done" else port.inspect())


def test_the_first_lock_in_a_fresh_file_waits_for_who_writes_there(tmp_path: Path, beside: Beside) -> None:
    """SQLite itself waits for nobody where a file becomes one with a write-ahead log: it was refused at once."""
    settings = {"LOCATION": f"sqlite:///{tmp_path}/fresh.sqlite3"}
    configure({"default": {**settings, "OPTIONS": {"timeout": LONG}}})
    with somebody_elses(settings) as writer:
        do(writer, "CREATE TABLE another (a INTEGER)")
        keep(writer)
        pool = registry().store("default").backend._requests.connections  # type: ignore[attr-defined]
        first = beside(lambda: lock("k").acquire().release())
        eventually(lambda: pool.in_use == 1, "it tries")
        with pytest.raises(TimeoutError):
            first.result(0.1)
        end(writer)
        first.result(PATIENCE)


def test_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor twice: who cannot open the file cannot ask it either who has the lock."""
    settings = {"LOCATION": f"sqlite:///{tmp_path}/fresh.sqlite3"}
    store: Any = configure({"default": {**settings, "OPTIONS": {"timeout": 0.2}}}).store("default").backend
    opened: list[object] = []
    connected = store._address.dialect.connected
    monkeypatch.setattr(store._address.dialect, "connected", lambda driver: (opened.append(driver), connected(driver)))
    with somebody_elses(settings) as writer:
        do(writer, "CREATE TABLE another (a INTEGER)")
        keep(writer)
        with pytest.raises(BackendUnavailable, match="another program keeps its write lock"):
            lock("k").acquire()
        assert len(opened) == 1
        end(writer)
