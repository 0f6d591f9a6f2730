"""What is wrong with a database is said as what it is: by its name, within bounded time, without a password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError

from distlock_web import BackendUnavailable, ConfigurationError, DistLockError, configure, lock
from distlock_web.backends.sql.dialects import MySQL
from distlock_web.core.runtime import now
from distlock_web.testing.servers import free_port
from tests.support.database_servers import PostgresServer
from tests.support.proxy import Proxy
from tests.support.waiting import SLACK

RIGHT, WRONG = "the-right-one", "the-secret"


@pytest.fixture(params=["postgres", "mariadb"])
def location(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_settings")["LOCATION"]
    return found


@pytest.fixture
def administration(location: str) -> Iterator[Engine]:
    engine = create_engine(location, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture
def password(location: str, administration: Engine, request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """The location for a user who needs a password, and has no rights on tables of others."""
    url = make_url(location)
    with administration.connect() as connection:
        if url.get_backend_name() == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            rules = Path(server.folder, "data", "pg_hba.conf")
            before = rules.read_text()
            rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text(f"CREATE ROLE locked LOGIN PASSWORD '{RIGHT}'"))
        else:
            # A new MariaDB lets everybody do everything in databases of such a name.
            connection.execute(text("DELETE FROM mysql.db WHERE Db LIKE 'test%'"))
            connection.execute(text(f"CREATE USER locked@'127.0.0.1' IDENTIFIED BY '{RIGHT}'"))
            connection.execute(text("FLUSH PRIVILEGES"))
            connection.execute(text(f"GRANT CREATE ON {url.database}.* TO locked@'127.0.0.1'"))
        yield lambda secret: url.set(username="locked", password=secret).render_as_string(hide_password=False)
        if url.get_backend_name() == "postgresql":
            connection.execute(text("DROP ROLE locked"))
            rules.write_text(before)
        else:
            connection.execute(text("DROP USER locked@'127.0.0.1'"))


def refused(location: str, **options: Any) -> DistLockError:
    """What is said to who wants a lock there; it comes within bounded time, and every time."""
    configure({"default": {"LOCATION": location, "OPTIONS": options}})
    begun = now()
    with pytest.raises(DistLockError) as caught:
        lock("a").acquire()
    assert now() - begun < SLACK
    with pytest.raises(type(caught.value)):
        lock("a").acquire()
    for secret in (RIGHT, WRONG):
        assert secret not in f"{caught.value!r} {caught.value}"
    return caught.value


def test_a_wrong_password_is_a_setting_that_is_wrong_and_no_outage(password: Callable[[str], str]) -> None:
    """Else on_backend_error="open" would let everybody in without a lock."""
    error = refused(password(WRONG))
    assert isinstance(error, ConfigurationError)
    assert "does not accept this user and password" in str(error)


def test_rights_that_are_missing_are_named(location: str, password: Callable[[str], str]) -> None:
    configure({"default": {"LOCATION": location}})
    with lock("first"):
        pass
    error = refused(password(RIGHT))
    assert isinstance(error, ConfigurationError)
    assert "SELECT, INSERT, UPDATE and DELETE" in str(error) or "does not accept this user" in str(error)


def test_a_user_who_is_locked_out(location: str, administration: Engine, password: Callable[[str], str]) -> None:
    if make_url(location).get_backend_name() == "postgresql":
        locked_out = "ALTER ROLE locked NOLOGIN"
    else:
        locked_out = "ALTER USER locked@'127.0.0.1' ACCOUNT LOCK"
    with administration.connect() as connection:
        connection.execute(text(locked_out))
    error = refused(password(RIGHT))
    assert isinstance(error, ConfigurationError)
    assert "does not accept this user and password" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1213, "again"),
        (3101, "again"),
        (1412, "again"),
        (3169, "gone"),
        (4031, "gone"),
        (3032, "not_now"),
        (3159, "wrong"),
    ],
)
def test_what_mysql_says_and_mariadb_does_not(code: int, kind: str) -> None:
    """No MySQL is among the servers of the tests: the numbers are those of its manual."""
    said = pymysql.err.OperationalError(code, "what it says")
    assert MySQL(2.0, mariadb=False).fault(DBAPIError("COMMIT", None, said)).kind == kind


def test_a_database_that_does_not_exist(location: str) -> None:
    error = refused(make_url(location).set(database="missing").render_as_string(hide_password=False))
    assert isinstance(error, ConfigurationError)
    assert "missing" in str(error)
    assert "does not exist" in str(error)


def test_a_keyword_that_the_driver_does_not_have() -> None:
    """It was a TypeError of every lock, which nobody takes for a setting."""
    error = refused("mysql://h/x", connect_args={"ssl_mode": "REQUIRED"})
    assert isinstance(error, ConfigurationError)
    assert "'ssl_mode'" in str(error)


def test_a_server_that_refuses(location: str) -> None:
    port = free_port()
    error = refused(make_url(location).set(port=port).render_as_string(hide_password=False))
    assert isinstance(error, BackendUnavailable)
    assert f"127.0.0.1:{port} cannot be reached" in str(error)


@pytest.mark.slow
def test_a_host_that_does_not_exist() -> None:
    assert isinstance(refused("mysql://locks@nowhere.invalid/x"), BackendUnavailable)


def test_a_server_that_never_answers(location: str, make_proxy: Callable[[int], Proxy]) -> None:
    proxy = make_proxy(make_url(location).port or 0)
    proxy.swallow()
    error = refused(make_url(location).set(port=proxy.port).render_as_string(hide_password=False), timeout=1.5)
    assert isinstance(error, BackendUnavailable)
    assert "does not answer" in str(error)


def test_a_server_that_is_read_only(location: str, administration: Engine, password: Callable[[str], str]) -> None:
    configure({"default": {"LOCATION": location}})
    with lock("first"):
        pass
    url = make_url(location)
    with administration.connect() as connection:
        if url.get_backend_name() == "postgresql":
            connection.execute(text(f"ALTER DATABASE {url.database} SET default_transaction_read_only = on"))
        else:
            connection.execute(text(f"GRANT ALL ON {url.database}.* TO locked@'127.0.0.1'"))
            connection.execute(text("SET GLOBAL read_only = 1"))
            location = password(RIGHT)
        try:
            error = refused(location)
        finally:
            if url.get_backend_name() == "postgresql":
                connection.execute(text("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE"))
                connection.execute(text(f"ALTER DATABASE {url.database} RESET default_transaction_read_only"))
            else:
                connection.execute(text("SET GLOBAL read_only = 0"))
    assert isinstance(error, BackendUnavailable)
    assert "is read-only" in str(error)


def test_a_table_that_is_missing_where_we_are_not_to_make_it(location: str, administration: Engine) -> None:
    with administration.connect() as connection:
        for table in ("distlock_lease", "distlock_waiter"):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    error = refused(location, create=False)
    assert isinstance(error, ConfigurationError)
    assert 'run "distlock init"' in str(error)
    store = configure({"default": {"LOCATION": location, "OPTIONS": {"create": False}}}).store("default")
    assert "distlock_lease" in store.backend.prepare()  # type: ignore[attr-defined]
    with lock("a"):
        pass


def test_a_table_of_another_version(location: str, administration: Engine) -> None:
    with administration.connect() as connection:
        connection.execute(text("DROP TABLE IF EXISTS distlock_lease"))
        connection.execute(text("CREATE TABLE distlock_lease (name_key VARCHAR(64) PRIMARY KEY)"))
    try:
        error = refused(location)
    finally:
        with administration.connect() as connection:
            connection.execute(text("DROP TABLE distlock_lease"))
    assert isinstance(error, ConfigurationError)
    assert "or one of another version" in str(error)
    assert "drop distlock_lease and distlock_waiter" in str(error)


# SQLite --------------------------------------------------------------------------------------------------------------


def test_an_sqlite_without_its_folder(tmp_path: Path) -> None:
    error = refused(f"sqlite:///{tmp_path}/nowhere/locks.sqlite3")
    assert isinstance(error, ConfigurationError)
    assert "there has to be a folder" in str(error)


def test_a_file_that_is_no_sqlite(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database " * 100)
    error = refused(f"sqlite:///{tmp_path}/file")
    assert isinstance(error, ConfigurationError)
    assert "is no SQLite database" in str(error)


def test_an_sqlite_whose_write_lock_somebody_keeps(sqlite_settings: dict[str, Any]) -> None:
    location = sqlite_settings["LOCATION"]
    configure({"default": {"LOCATION": location}})
    with lock("first"):
        pass
    engine = create_engine(location, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        error = refused(location, timeout=0.2)
        assert isinstance(error, BackendUnavailable)
        assert "another program keeps its write lock" in str(error)
        connection.exec_driver_sql("ROLLBACK")
    engine.dispose()
    with lock("first"):
        pass


@pytest.mark.parametrize(("code", "kind"), [(1062, "again"), (1586, "again"), (1048, "unknown"), (1452, "unknown")])
def test_of_what_is_wrong_with_a_row_only_that_there_is_one_already_is_tried_again(code: int, kind: str) -> None:
    """A column that must not be empty read as "others were in its way", after five tries."""
    error = IntegrityError("INSERT", {}, pymysql.err.IntegrityError(code, "in words"))
    assert MySQL(2.0, mariadb=False).fault(error).kind == kind
