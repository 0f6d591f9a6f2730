"""The SQL store on each database: a database of its own for the session, empty for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

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
    url = location(database)
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in engine.dialect.get_table_names(connection):
            if table in TABLES:
                connection.execute(text(f"DELETE FROM {table}"))
    engine.dispose()
    return {"LOCATION": url}


def location(database: Database) -> str:
    return database.sqlalchemy
