"""The SQL store on each database: a database of its own for the session, empty for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from distlock_web.backends.sql.tables import key_of
from tests.support.database_servers import MariaDBServer, PostgresServer
from tests.support.databases import Database, new_database

TABLES = ("distlock_lease", "distlock_waiter", "distlock_holder", "distlock_record")


@pytest.fixture(scope="session")
def postgres_locks(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with new_database("postgres", postgres_server.port, tmp_path_factory.getbasetemp()) as database:
        yield database


@pytest.fixture(scope="session")
def mariadb_locks(mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with new_database("mariadb", mariadb_server.port, tmp_path_factory.getbasetemp()) as database:
        yield database


@pytest.fixture
def postgres_settings(postgres_locks: Database) -> dict[str, Any]:
    return emptied(postgres_locks)


@pytest.fixture
def mariadb_settings(mariadb_locks: Database) -> dict[str, Any]:
    return emptied(mariadb_locks)


@pytest.fixture
def sqlite_settings(tmp_path: Path) -> dict[str, Any]:
    return {"LOCATION": f"sqlite:///{tmp_path / 'locks.sqlite3'}"}


def emptied(database: Database) -> dict[str, Any]:
    """One alias of ``DISTLOCK`` for a database without locks."""
    settings = {"LOCATION": database.sqlalchemy}
    with somebody_elses(settings) as connection:
        for table in inspect(connection).get_table_names():
            if table in TABLES:
                connection.execute(text(f"DELETE FROM {table}"))
    return settings


@contextmanager
def somebody_elses(settings: dict[str, Any]) -> Iterator[Connection]:
    """A connection to the database of these settings, whose statements begin and end by themselves."""
    engine = create_engine(settings["LOCATION"], isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def keep(connection: Connection, *names: str) -> None:
    """Begin a transaction that keeps the rows of these locks, or the whole file. It ends with ROLLBACK."""
    sqlite = connection.engine.dialect.name == "sqlite"
    connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
    for name in () if sqlite else names:
        statement = text("SELECT name_key FROM distlock_lease WHERE name_key = :key FOR UPDATE")
        connection.execute(statement, {"key": key_of(name)})


def end(connection: Connection) -> None:
    connection.exec_driver_sql("ROLLBACK")
