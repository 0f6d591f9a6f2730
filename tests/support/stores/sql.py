"""The SQL store on each database: a database of its own for the session, empty for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from distlock_web.backends.sql.tables import key_of
from distlock_web.core.config import with_resource
from distlock_web.core.database_address import DatabaseAddress
from distlock_web.core.registry import Registry
from distlock_web.django.stores import RESOURCES
from tests.support.database_servers import MariaDBServer, PostgresServer
from tests.support.databases import Database, django_alias, new_database

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


# The same by Django: its machinery makes the connections --------------------------------------------------------------


@contextmanager
def by_django(database: Database) -> Iterator[dict[str, Any]]:
    """One alias of ``DISTLOCK`` for a database of Django's without locks, which has the tables."""
    located = emptied(database)
    registry = Registry({"default": located})
    registry.store("default").backend.prepare()  # as the migrations would
    registry.close()
    with django_alias("locks", database), pytest.MonkeyPatch.context() as patch:
        # ``configure()`` of a Django project knows its databases.
        patch.setattr("distlock_web.core.registry.with_resource", lambda config, _: with_resource(config, RESOURCES))
        yield {"DATABASE": "locks"}


@pytest.fixture
def postgres_django_settings(postgres_locks: Database, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    with django_db_blocker.unblock(), by_django(postgres_locks) as settings:
        yield settings


@pytest.fixture
def mariadb_django_settings(mariadb_locks: Database, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    with django_db_blocker.unblock(), by_django(mariadb_locks) as settings:
        yield settings


@pytest.fixture
def sqlite_django_settings(tmp_path: Path, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    with django_db_blocker.unblock(), by_django(Database("sqlite", str(tmp_path / "project.sqlite3"))) as settings:
        yield settings


def known_at(address: DatabaseAddress) -> Any:
    """A framework's database at this address, to which nobody connects."""
    driver = SimpleNamespace(
        Error=type("Error", (Exception,), {}),
        __name__={"postgresql": "psycopg", "mysql": "MySQLdb"}.get(address.kind, ""),
    )
    return SimpleNamespace(address=address, migrated=address.kind != "sqlite", driver=driver, version=None)
