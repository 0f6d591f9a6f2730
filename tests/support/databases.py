"""A new, empty database for a test, as Django and as SQLAlchemy want to hear of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import pymysql
from django.db import connections, models

Kind = Literal["sqlite", "postgres", "mariadb"]

# Django asks for mysqlclient, which has no wheels; PyMySQL passes for one of a version that Django likes.
pymysql.install_as_MySQLdb()
pymysql.version_info = (2, 2, 7, "final", 0)


@dataclass(frozen=True)
class Database:
    kind: Kind
    name: str  #: of a file, for SQLite
    port: int = 0

    @property
    def django(self) -> dict[str, Any]:
        """An entry of ``DATABASES``."""
        if self.kind == "sqlite":
            # The write lock at BEGIN, waited for: what an SQLite that several processes write to needs.
            options = {"transaction_mode": "IMMEDIATE", "timeout": 30}
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.name, "OPTIONS": options}
        engine, user = ("postgresql", "postgres") if self.kind == "postgres" else ("mysql", "root")
        return {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": self.name,
            "USER": user,
            "HOST": "127.0.0.1",
            "PORT": self.port,
        }

    @property
    def sqlalchemy(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.name}"
        driver, user = ("postgresql+psycopg", "postgres") if self.kind == "postgres" else ("mysql+pymysql", "root")
        return f"{driver}://{user}@127.0.0.1:{self.port}/{self.name}"


@contextmanager
def new_database(kind: Kind, port: int, folder: Path, having: str = "") -> Iterator[Database]:
    """``having``: what CREATE DATABASE says of it."""
    name = f"test_{secrets.token_hex(4)}"
    if kind == "sqlite":
        yield Database(kind, str(folder / f"{name}.sqlite3"))
        return
    _administer(kind, port, f"CREATE DATABASE {name} {having}")
    try:
        yield Database(kind, name, port)
    finally:
        _administer(kind, port, f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgres" else ""))


def _administer(kind: Kind, port: int, statement: str) -> None:
    if kind == "postgres":
        with psycopg.connect(host="127.0.0.1", port=port, user="postgres", autocommit=True) as connection:
            connection.execute(statement)
    else:
        with closing(pymysql.connect(host="127.0.0.1", port=port, user="root")) as connection:
            connection.cursor().execute(statement)


@contextmanager
def django_alias(alias: str, database: Database, *tables: type[models.Model]) -> Iterator[str]:
    """Django knows the database under this alias, with these tables. What had the alias before is put back."""
    before = (connections.settings[alias], connections[alias]) if alias in connections.settings else None
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: database.django})[alias]
    connections[alias] = connections.create_connection(alias)
    try:
        with connections[alias].schema_editor() as editor:
            for table in tables:
                editor.create_model(table)
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
        if before is not None:
            connections.settings[alias], connections[alias] = before
