"""PostgreSQL and MariaDB: a message is what a driver sends before it waits, or an answer. SQLite: it is a statement."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, ClassVar, Self

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.engine import URL

from distlock_web.testing.servers import OwnServer
from tests.support.database_servers import MariaDBServer, PostgresServer
from tests.support.databases import Kind, new_database
from tests.support.stores.sql import TABLES

from .database_wires import MySQL, PostgreSQL, in_words
from .seam import Seam
from .steps import Fault, Strike
from .way import Way


class _Postgres(PostgresServer):
    def command(self, port: int) -> list[str]:
        return [*super().command(port), "-c", "max_connections=600"]


class _MariaDB(MariaDBServer):
    def command(self, port: int) -> list[str]:
        return [*super().command(port), "--max-connections=600"]


class _SQLWay(Way):
    backend = "sql"
    #: A TCP stream has nothing twice; and a second copy of a statement is another one in its transaction.
    not_tried_faults: ClassVar[Mapping[Fault, str]] = {Fault.TWICE: "a stream has nothing twice"}
    _connection: Connection

    def _look_at(self, url: URL | str) -> None:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        self._connection = self._stack.enter_context(engine.connect())
        self._stack.callback(engine.dispose)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._stack.close()

    def clear(self) -> None:
        for table in inspect(self._connection).get_table_names():
            if table in TABLES:
                self._connection.execute(text(f"DELETE FROM {table}"))

    def left(self) -> list[str]:
        """Whatever has ended stays for some minutes, and is purged then. What has not ended has to end soon."""
        moment = time.time() * 1e6 + 1e6 * 20 * self.lease
        wanted = {
            "distlock_lease": "state <> 'done' AND expires_at",
            "distlock_holder": "expires_at",
            "distlock_waiter": "deadline",
        }
        found = []
        for table, ends in wanted.items():
            rows = self._connection.execute(text(f"SELECT * FROM {table} WHERE {ends} > :moment"), {"moment": moment})
            found += [f"{table}: {row._asdict()}" for row in rows]
        return found


class _ServerWay(_SQLWay):
    kind: ClassVar[Kind]
    server: ClassVar[type[OwnServer]]
    scheme: ClassVar[str]
    user: ClassVar[str]
    dialect: ClassVar[Any]

    @classmethod
    @contextmanager
    def serve(cls) -> Iterator[Mapping[str, Any]]:
        with cls.server() as server:
            yield {"port": server.port}

    def __enter__(self) -> Self:
        super().__enter__()
        database = self._stack.enter_context(new_database(self.kind, self.shared["port"], Path()))
        self._name = database.name
        self._look_at(database.sqlalchemy)
        return self

    def _url(self, port: int) -> str:
        return f"{self.scheme}://{self.user}@127.0.0.1:{port}/{self._name}"

    def near(self) -> dict[str, Any]:
        return {"LOCATION": self._url(self.shared["port"])}

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        wire = self.wire(party, strike, self.shared["port"], self.dialect)
        return {"LOCATION": self._url(wire.port), "OPTIONS": {"timeout": self.timeout}}

    def database(self) -> str:
        scheme = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[self.scheme]
        return self._url(self.shared["port"]).replace(self.scheme, scheme, 1)


class PostgresWay(_ServerWay):
    name = "postgres"
    example: ClassVar[Mapping[str, Any]] = {"LOCATION": "postgresql://postgres@127.0.0.1:1/none"}
    lease, timeout = 0.8, 0.25
    kind, server, scheme, user, dialect = "postgres", _Postgres, "postgresql", "postgres", PostgreSQL


class MariaDBWay(_ServerWay):
    """Its time-outs are of whole seconds, so its leases have to be longer."""

    name = "mariadb"
    example: ClassVar[Mapping[str, Any]] = {"LOCATION": "mysql://root@127.0.0.1:1/none"}
    lease, timeout = 2.5, 1.5
    kind, server, scheme, user, dialect = "mariadb", _MariaDB, "mysql", "root", MySQL


# In the process -------------------------------------------------------------------------------------------------------


class _Cursor(sqlite3.Cursor):
    seam: ClassVar[Seam]

    def execute(self, statement: str, *given: Any) -> Self:
        fault = self.seam.meets(in_words(statement.encode()))
        if fault in (Fault.CUT_BEFORE, Fault.REQUEST_LOST):
            raise sqlite3.OperationalError("disk I/O error")
        if fault in self.seam.held:
            self.seam.hold(fault)
        super().execute(statement, *given)
        if fault in (Fault.CUT_AFTER, Fault.ANSWER_LOST):
            raise sqlite3.OperationalError("disk I/O error")
        return self


def _through(seam: Seam) -> type[sqlite3.Connection]:
    cursors = type("Cursor", (_Cursor,), {"seam": seam})

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(cursors)

        def execute(self, *given: Any) -> Any:
            return self.cursor().execute(*given)

    return Connection


class SQLiteWay(_SQLWay):
    """Nothing of a file is lost on the way: a statement fails before it is done, or after, or takes long."""

    name = "sqlite"
    example: ClassVar[Mapping[str, Any]] = {"LOCATION": "sqlite:////nowhere/locks.sqlite3"}
    lease, timeout = 0.8, 0.25
    in_threads = True
    not_tried_faults: ClassVar[Mapping[Fault, str]] = {
        Fault.TWICE: "a second copy of a statement is another one in its transaction",
        Fault.REQUEST_LOST: "a file answers: cut-before",
        Fault.ANSWER_LOST: "a file answers: cut-after",
        Fault.AWAY: "there is no server",
        Fault.SLOW: "late: a statement is waited for",
    }

    def __enter__(self) -> Self:
        super().__enter__()
        folder = self._stack.enter_context(TemporaryDirectory())
        self._file = f"{folder}/locks-{secrets.token_hex(4)}.sqlite3"
        self._look_at(f"sqlite:///{self._file}")
        return self

    def near(self) -> dict[str, Any]:
        return {"LOCATION": f"sqlite:///{self._file}"}

    def connect(self, party: str, strike: Strike) -> dict[str, Any]:
        seam = Seam(party, strike, late=1.5 * self.timeout, later=1.2 * self.lease, stopped=1.5 * self.lease)
        return {**self.near(), "OPTIONS": {"timeout": self.timeout, "connect_args": {"factory": _through(seam)}}}
