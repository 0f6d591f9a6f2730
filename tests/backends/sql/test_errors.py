"""What is wrong with a database is said as what it is: by its name, within bounded time, without a password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from distlock_web import BackendUnavailable, ConfigurationError, configure, lock
from distlock_web.core.runtime import now
from distlock_web.ops.doctor import examine_store
from distlock_web.testing.servers import free_port
from tests.support.database_servers import PostgresServer
from tests.support.proxy import Proxy
from tests.support.stores.sql import end, keep, somebody_elses
from tests.support.waiting import SLACK

RIGHT, WRONG = "the-right-one", "the-secret"


@pytest.fixture
def location(server_settings: dict[str, Any]) -> str:
    found: str = server_settings["LOCATION"]
    return found


@pytest.fixture
def administration(location: str) -> Iterator[Connection]:
    with somebody_elses({"LOCATION": location}) as connection:
        yield connection


def is_postgres(location: str) -> bool:
    return make_url(location).get_backend_name() == "postgresql"


def do(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(text(statement))


@pytest.fixture
def password(
    location: str, administration: Connection, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], str]]:
    """The location for a user who needs a password, and has no rights on tables of others."""
    url = make_url(location)

    def with_password(secret: str) -> str:
        return url.set(username="locked", password=secret).render_as_string(hide_password=False)

    if is_postgres(location):
        server: PostgresServer = request.getfixturevalue("postgres_server")
        rules = Path(server.folder, "data", "pg_hba.conf")
        before = rules.read_text()
        rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
        do(administration, "SELECT pg_reload_conf()", f"CREATE ROLE locked LOGIN PASSWORD '{RIGHT}'")
        yield with_password
        do(administration, "DROP ROLE locked")
        rules.write_text(before)
    else:
        # A new MariaDB lets everybody do everything in databases of such a name.
        do(
            administration,
            "DELETE FROM mysql.db WHERE Db LIKE 'test%'",
            f"CREATE USER locked@'127.0.0.1' IDENTIFIED BY '{RIGHT}'",
            "FLUSH PRIVILEGES",
            f"GRANT CREATE ON {url.database}.* TO locked@'127.0.0.1'",
        )
        yield with_password
        do(administration, "DROP USER locked@'127.0.0.1'")


def refused(location: str, says: str, wrong: bool, **options: Any) -> str:
    """Whoever wants a lock there is refused, within bounded time, and every time. ``wrong``: a setting is."""
    configure({"default": {"LOCATION": location, "OPTIONS": options}})
    begun = now()
    # An outage where a setting is wrong: on_backend_error="open" would let everybody in without a lock.
    with pytest.raises(ConfigurationError if wrong else BackendUnavailable, match=says) as caught:
        lock("a").acquire()
    assert now() - begun < SLACK
    with pytest.raises(type(caught.value)):
        lock("a").acquire()
    for secret in (RIGHT, WRONG):
        assert secret not in f"{caught.value!r} {caught.value}"
    return str(caught.value)


def make_tables(location: str) -> None:
    configure({"default": {"LOCATION": location}})
    with lock("first"):
        pass


def test_a_user_who_may_not(location: str, administration: Connection, password: Callable[[str], str]) -> None:
    """Has the wrong password, has no rights on the tables, is locked out."""
    not_accepted = "does not accept this user and password"
    refused(password(WRONG), not_accepted, wrong=True)
    make_tables(location)
    refused(password(RIGHT), f"SELECT, INSERT, UPDATE and DELETE|{not_accepted}", wrong=True)
    locked_out = "ALTER ROLE locked NOLOGIN" if is_postgres(location) else "ALTER USER locked@'127.0.0.1' ACCOUNT LOCK"
    do(administration, locked_out)
    refused(password(RIGHT), not_accepted, wrong=True)


def test_a_database_that_does_not_exist(location: str) -> None:
    missing = make_url(location).set(database="missing").render_as_string(hide_password=False)
    refused(missing, "missing.*does not exist", wrong=True)


def test_a_schema_that_does_not_exist(settings: dict[str, Any]) -> None:
    """PostgreSQL's was one without tables: its user was told to drop them. SQLite's had no meaning here.

    And its user was told to make one, which it cannot.
    """
    said = refused(settings["LOCATION"], "has no such schema|does not exist", wrong=True, schema="nowhere")
    assert "nowhere" in said
    assert "drop" not in said
    assert ("leave it out" in said) == settings["LOCATION"].startswith("sqlite")
    assert ("CREATE SCHEMA" in said) == is_postgres(settings["LOCATION"])


def test_a_search_path_that_leads_nowhere(postgres_settings: dict[str, Any]) -> None:
    location = make_url(postgres_settings["LOCATION"]).set(query={"options": "-csearch_path=nowhere"})
    said = refused(location.render_as_string(hide_password=False), "has no such schema", wrong=True)
    assert "drop" not in said


#: What Django itself refuses when it connects, in its own words, without an error of the driver.
REFUSED_BY_DJANGO = {
    "postgres": ({"isolation_level": 99}, "isolation level"),
    "mariadb": ({"isolation_level": "bogus"}, "isolation level"),
    "sqlite": ({"transaction_mode": "BOGUS"}, "transaction_mode"),
}


@pytest.mark.parametrize("too_old", [False, True], ids=["an option", "too old for Django"])
@pytest.mark.parametrize("kind", REFUSED_BY_DJANGO)
def test_what_django_refuses_is_a_setting(
    kind: str, too_old: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came out of each lock as it was, and `distlock doctor` ended in it."""
    store = configure({"default": request.getfixturevalue(f"{kind}_django_settings")}).store("default")
    options, says = REFUSED_BY_DJANGO[kind]
    if too_old:
        says = "or later is required"
        monkeypatch.setattr("django.db.backends.base.base.RAN_DB_VERSION_CHECK", set())
        monkeypatch.setattr(type(connections["locks"].features), "minimum_database_version", (99,))
    else:
        monkeypatch.setitem(connections["locks"].settings_dict, "OPTIONS", options)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"'locks'.*{says}"):
            lock("a").acquire()
    assert says in " ".join(finding.problem for finding in examine_store(store))


def test_a_keyword_that_the_driver_does_not_have() -> None:
    """It was a TypeError of every lock, which nobody takes for a setting; and an outage, where the host was away."""
    refused("mysql://h.invalid/x", "'ssl_mode'", wrong=True, connect_args={"ssl_mode": "REQUIRED"})


def test_a_server_that_refuses_or_does_not_answer(location: str, make_proxy: Callable[[int], Proxy]) -> None:
    url, port = make_url(location), free_port()
    refused(str(url.set(port=port)), f"127.0.0.1:{port} cannot be reached", wrong=False)
    proxy = make_proxy(url.port or 0)
    proxy.swallow()
    refused(str(url.set(port=proxy.port)), "does not answer", wrong=False, timeout=1.5)


@contextmanager
def read_only(location: str, administration: Connection) -> Iterator[None]:
    database = make_url(location).database
    if is_postgres(location):
        do(administration, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    else:
        do(administration, f"GRANT ALL ON {database}.* TO locked@'127.0.0.1'", "SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        if is_postgres(location):
            do(
                administration,
                "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
                f"ALTER DATABASE {database} RESET default_transaction_read_only",
            )
        else:
            do(administration, "SET GLOBAL read_only = 0")


def test_a_server_that_is_read_only(location: str, administration: Connection, password: Callable[[str], str]) -> None:
    make_tables(location)
    with read_only(location, administration):
        refused(location if is_postgres(location) else password(RIGHT), "is read-only", wrong=False)


def test_a_table_that_is_missing_where_we_are_not_to_make_it(location: str, administration: Connection) -> None:
    do(administration, *[f"DROP TABLE IF EXISTS distlock_{name}" for name in ("lease", "waiter", "holder", "record")])
    refused(location, 'run "distlock init"', wrong=True, create=False)
    store: Any = configure({"default": {"LOCATION": location, "OPTIONS": {"create": False}}}).store("default")
    assert "distlock_lease" in store.backend.prepare()
    with lock("a"):
        pass


def test_a_table_of_another_version(location: str, administration: Connection) -> None:
    columns = "(name_key VARCHAR(64) PRIMARY KEY)"
    do(administration, "DROP TABLE IF EXISTS distlock_lease", f"CREATE TABLE distlock_lease {columns}")
    try:
        said = refused(location, "or one of another version", wrong=True)
    finally:
        do(administration, "DROP TABLE distlock_lease")
    assert "drop distlock_lease, distlock_waiter, distlock_holder and distlock_record" in said


def test_an_sqlite_file_that_cannot_be_used(tmp_path: Path) -> None:
    refused(f"sqlite:///{tmp_path}/nowhere/locks.sqlite3", "there has to be a folder", wrong=True)
    (tmp_path / "file").write_text("no database " * 100)
    refused(f"sqlite:///{tmp_path}/file", "is no SQLite database", wrong=True)


def test_a_test_that_has_not_asked_for_the_database(
    sqlite_django_settings: dict[str, Any], django_db_blocker: Any
) -> None:
    """pytest-django refuses it, and its database may be the developer's."""
    configure({"default": sqlite_django_settings})
    with (
        django_db_blocker.block(),
        pytest.raises(ConfigurationError, match=r'to: Database access not allowed, use the "django_db" mark.*[^.]\.$'),
    ):
        lock("a").acquire()


def test_an_sqlite_whose_write_lock_somebody_keeps(sqlite_settings: dict[str, Any]) -> None:
    location = sqlite_settings["LOCATION"]
    make_tables(location)
    with somebody_elses(sqlite_settings) as connection:
        keep(connection)
        refused(location, "another program keeps its write lock", wrong=False, timeout=0.2)
        end(connection)
    with lock("first"):
        pass
