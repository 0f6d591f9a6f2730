"""What differs between the databases: how to connect, to begin, and to read the clock. ``faults`` has their errors."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Table,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy.exc import DBAPIError

from ...core.runtime import DICE, IDENT_DIGITS, now
from .faults import Fault, of_mysql, of_postgresql, of_sqlite


def channel_of(token: str) -> str:
    """Where the store of this token listens."""
    return f"distlock_{token[:IDENT_DIGITS]}"


#: Seconds after which a MySQL ends a connection that says nothing. One that was only idle is made anew at its next use.
MYSQL_SILENCE = 60

#: Seconds between two questions of the kernel on a connection that says nothing. It is dead after three without answer.
KEEPALIVE = 3

#: Seconds after which a file that others write to is asked again, at most, whether it can be changed.
SQLITE_AGAIN = 0.02


class Dialect:
    title: str  #: for messages
    driver: str  #: what SQLAlchemy calls it
    extra: str  #: what to install for it
    timeout: float  #: seconds
    clock: ColumnElement[int]
    notify: Executable | None = None  #: tells ``:channel`` the ``:token`` when it is committed

    def connect_args(self) -> dict[str, Any]:
        raise NotImplementedError

    def connect(self, given: dict[str, Any]) -> Any:
        """A connection that is made here; None: the driver makes it."""
        return None

    def connected(self, connection: Any) -> None:
        """A new connection of the driver."""

    def begin(self, connection: Any, seconds: float) -> str:
        """What begins a transaction on the driver's connection that has so many seconds."""
        raise NotImplementedError

    def add(self, table: Table, row: Mapping[str, ColumnElement[Any]]) -> Executable:
        """In a transaction of a caller's, in one statement, which reads nothing. Bounded: another run's row of the same
        key is waited for until its transaction ends, which may be stopped."""
        return table.insert().values(row)  # these have a limit of their own: innodb_lock_wait_timeout, busy_timeout

    def limit(self, connection: Any, seconds: float | None) -> None:
        """Wait for the next answer on the driver's connection for so long; None: as long as it lives."""

    def fault(self, error: DBAPIError) -> Fault:
        raise NotImplementedError


class PostgreSQL(Dialect):
    title, driver, extra = "PostgreSQL", "postgresql+psycopg", "postgresql"
    # Of the statement's beginning: an index can be searched for it, and a lease begins before the row was locked.
    clock: ColumnElement[int] = literal_column(
        "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)", BigInteger
    )
    notify: Executable | None = select(func.pg_notify(bindparam("channel"), bindparam("token")))

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def connect_args(self) -> dict[str, Any]:
        # No prepared statements: behind a pooler the next one may go to a server that knows them not.
        return {
            "connect_timeout": max(2, math.ceil(self.timeout)),
            "prepare_threshold": None,
            "application_name": "distlock",
            # A COMMIT that hangs is waited for as long as the connection lives: whether it does has to be found out.
            "keepalives_idle": KEEPALIVE,
            "keepalives_interval": KEEPALIVE,
            "keepalives_count": 3,
            "tcp_user_timeout": KEEPALIVE * 4000,
        }

    def connect(self, given: dict[str, Any]) -> Any:
        from .psycopg_connection import BoundedConnection

        connection = BoundedConnection.connect(**given)
        connection.limit = self.timeout
        return connection

    def begin(self, connection: Any, seconds: float) -> str:
        # In each transaction, and in the same request as its beginning: behind a pooler in transaction mode a session's
        # settings would be somebody else's. A client that is stopped in mid-transaction does not keep the row for long.
        milliseconds = max(1, int(self.timeout * 1000))
        return (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {max(1, int(seconds * 750))}; "
            # The limit of a row has to run out twice for one who is not the first in its queue.
            f"SET LOCAL statement_timeout = {max(1, int(seconds * 875))}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
        )

    def add(self, table: Table, row: Mapping[str, ColumnElement[Any]]) -> Executable:
        # Each of the three needs the one before it. What else the caller's transaction waits for has its own limit.
        name, limit = "lock_timeout", str(max(1, int(self.timeout * 750)))
        limited = select(func.current_setting(name).label("before"), func.set_config(name, limit, True)).cte("limited")
        rows = select(*row.values()).select_from(limited)
        added = table.insert().from_select(list(row), rows).returning(literal(1).label("one")).cte("added")
        return select(func.set_config(name, limited.c.before, True)).select_from(limited.join(added, true()))

    def limit(self, connection: Any, seconds: float | None) -> None:
        connection.limit = seconds

    def fault(self, error: DBAPIError) -> Fault:
        return of_postgresql(getattr(error.orig, "sqlstate", None) or "", str(error.orig))


class MySQL(Dialect):
    driver, extra = "mysql+pymysql", "mysql"
    # No UNIX_TIMESTAMP: it goes by the session's time zone, in which an hour of autumn comes twice.
    clock: ColumnElement[int] = literal_column("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", BigInteger)

    def __init__(self, timeout: float, *, mariadb: bool) -> None:
        self.timeout = timeout
        self._tls_contexts: dict[str, Any] = {}
        self.title = "MariaDB" if mariadb else "MySQL"  # whoever calls it MySQL may be mistaken: see connected()

    def connect_args(self) -> dict[str, Any]:
        return {
            "connect_timeout": self.timeout,
            "read_timeout": self.timeout,
            "write_timeout": self.timeout,
            "charset": "utf8mb4",
        }

    def connect(self, given: dict[str, Any]) -> Any:
        from .pymysql_connection import connect

        return connect(given, KEEPALIVE, self._tls_contexts)

    def connected(self, connection: Any) -> None:
        # Read committed: a statement sees what was committed while it waited for the row. It knows whole seconds only.
        statements = [
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            f"SET SESSION innodb_lock_wait_timeout = {max(1, int(self.timeout * 3 / 4))}",
        ]
        if "MariaDB" in connection.get_server_info():
            self.title = "MariaDB"
            # A client that is stopped in mid-transaction does not keep the row for long.
            statements.append(f"SET SESSION idle_transaction_timeout = {max(1, math.ceil(self.timeout))}")
        else:  # It knows nothing like it, but ends silent connections, in a transaction or not: else after 8 hours.
            statements.append(f"SET SESSION wait_timeout = {MYSQL_SILENCE}")
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def begin(self, connection: Any, seconds: float) -> str:
        return "START TRANSACTION"

    def limit(self, connection: Any, seconds: float | None) -> None:
        connection._read_timeout = seconds  # PyMySQL sets it when it connects, and in no other public way

    def fault(self, error: DBAPIError) -> Fault:
        code = error.orig.args[0] if error.orig is not None and error.orig.args else 0
        return of_mysql(code, str(error.orig))


class SQLite(Dialect):
    title, driver, extra = "SQLite", "sqlite+pysqlite", "sqlite"
    # No function of ours, in Python: SQLite would swallow the exception that a signal's handler raises in it.
    clock: ColumnElement[int] = literal_column(
        "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000", BigInteger
    )

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def connect_args(self) -> dict[str, Any]:
        return {"timeout": self.timeout, "check_same_thread": False}

    def connected(self, connection: Any) -> None:
        self._change_to_wal(connection)
        # What a loss of power could take is of no use after it: everybody who had a lock is gone with the machine.
        connection.execute("PRAGMA synchronous = NORMAL").close()

    def _change_to_wal(self, connection: Any) -> None:
        """Also where others use the file at this moment: SQLite waits for nobody where this has to change it."""
        until = now() + self.timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").close()
                return
            except connection.OperationalError as error:
                if of_sqlite(str(error)).kind != "locked" or now() > until:
                    raise
            time.sleep(DICE.random() * SQLITE_AGAIN)  # to meet the others not again

    def begin(self, connection: Any, seconds: float) -> str:
        connection.execute(f"PRAGMA busy_timeout = {max(1, int(seconds * 1000))}").close()
        return "BEGIN IMMEDIATE"

    def limit(self, connection: Any, seconds: float | None) -> None:
        """Nothing: it waits for the write lock only, at the beginning."""

    def fault(self, error: DBAPIError) -> Fault:
        return of_sqlite(str(error.orig))
