"""What differs between the databases: how to connect, to begin, and to read the clock. ``faults`` has their errors."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.runtime import DICE, Token, now
from .faults import SILENT, Fault, of_mysql, of_postgresql, of_sqlite
from .schema import Table
from .sockets import keep_alive
from .statement import Placeholder, Statement, execute
from .watched import Unanswered, Watched, WatchedMySQL


def channel_of(token: str) -> str:
    """Where the store of this token listens."""
    return f"distlock_{Token(token).store}"


#: Seconds after which a MySQL ends a connection that says nothing. One that was only idle is made anew at its next use.
MYSQL_SILENCE = 60

#: Seconds between two questions of the kernel on a connection that says nothing. It is dead after three without answer.
KEEPALIVE = 3

#: Seconds after which a file that others write to is asked again, at most, whether it can be changed.
SQLITE_AGAIN = 0.02


class Dialect:
    title: str  #: for messages
    kind: str
    extra: str  #: what to install for it
    drivers: Mapping[str, str] = {}  #: that a framework may have for it: module → what it is called. Empty: any
    timeout: float  #: seconds
    clock: str  #: an expression: its time in microseconds
    notify: Statement | None = None  #: tells ``:channel`` the ``:token`` when it is committed
    placeholder: Placeholder = "%s"
    #: What ends a question whose rows no other transaction may change; the second leaves out those that others keep.
    locking = (" FOR UPDATE", " FOR UPDATE SKIP LOCKED")

    def connect_args(self) -> dict[str, Any]:
        """What every driver of it is told."""
        raise NotImplementedError

    def connect(self, *place: Any, **given: Any) -> Any:
        """A connection of our own driver, which commits each statement."""
        raise NotImplementedError

    def adopt(self, connection: Any) -> Any:
        """One of any driver, made by other code, for us: its answers are waited for within a limit."""
        return connection

    def connected(self, connection: Any) -> None:
        """A new connection of the driver."""

    def begin(self, connection: Any, seconds: float) -> str:
        """What begins a transaction on the driver's connection that has so many seconds."""
        raise NotImplementedError

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def create(self, table: Table, at: str) -> Iterator[str]:
        """What makes this table, there."""
        yield f"CREATE TABLE {at} ({self._columns(table)})"
        for name, columns in table.indexes:
            yield f"CREATE INDEX {name} ON {at} ({columns})"

    def _columns(self, table: Table, long_text: str = "TEXT") -> str:
        columns = (f"{name} {long_text if kind == 'LONGTEXT' else kind} NOT NULL" for name, kind in table.columns)
        return ", ".join([*columns, f"PRIMARY KEY ({table.names[0]})"])

    def add(self, table: Table, at: str, values: Sequence[str]) -> str:
        """A row of this table, there, in a transaction of a caller's: one statement, which reads nothing. Bounded:
        another run's row of the same key is waited for until its transaction ends, which may be stopped."""
        # These have a limit of their own: innodb_lock_wait_timeout, busy_timeout.
        return f"INSERT INTO {at} ({', '.join(table.names)}) VALUES ({', '.join(values)})"  # noqa: S608

    def limit(self, connection: Any, seconds: float | None) -> None:
        """Wait for the next answer on the driver's connection for so long; None: as long as it lives."""

    def fault(self, error: Exception) -> Fault:
        raise NotImplementedError

    def is_broken(self, connection: Any) -> bool:
        """Whether the driver knows that its connection has ended."""
        return False


class PostgreSQL(Dialect):
    title, kind, extra = "PostgreSQL", "postgresql", "postgresql"
    drivers: Mapping[str, str] = {"psycopg": "psycopg", "psycopg2": "psycopg2"}
    # Of the statement's beginning: an index can be searched for it, and a lease begins before the row was locked.
    clock = "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)"
    notify: Statement | None = Statement("SELECT pg_notify(:channel, :token)")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def connect_args(self) -> dict[str, Any]:
        return {
            "connect_timeout": max(2, math.ceil(self.timeout)),
            "application_name": "distlock",
            # A COMMIT that hangs is waited for as long as the connection lives: whether it does has to be found out.
            "keepalives_idle": KEEPALIVE,
            "keepalives_interval": KEEPALIVE,
            "keepalives_count": 3,
            "tcp_user_timeout": KEEPALIVE * 4000,
        }

    def connect(self, *place: Any, **given: Any) -> Any:
        import psycopg

        # No prepared statements: behind a pooler the next one may go to a server that knows them not. And text comes as
        # text, also of a database with the encoding SQL_ASCII: psycopg gives its as bytes.
        usual = {"prepare_threshold": None, "client_encoding": "utf8"}
        return self.adopt(psycopg.connect(*place, **{**usual, **given, "autocommit": True}))

    def adopt(self, connection: Any) -> Any:
        if not hasattr(connection, "pgconn"):
            return Watched(connection, self.timeout)
        from .psycopg_connection import bound

        bound(connection, self.timeout)
        return connection

    def begin(self, connection: Any, seconds: float) -> str:
        # In each transaction, and in the same request as its beginning: behind a pooler in transaction mode a session's
        # settings would be another's. A client that is stopped in mid-transaction does not keep the row for long.
        milliseconds = max(1, int(self.timeout * 1000))
        return (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {max(1, int(seconds * 750))}; "
            # The limit of a row has to run out twice for one who is not the first in its queue.
            f"SET LOCAL statement_timeout = {max(1, int(seconds * 875))}; "
            f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
        )

    def create(self, table: Table, at: str) -> Iterator[str]:
        # In one request, which is one transaction: a table that is there has its indexes.
        yield "; ".join(super().create(table, at))

    def add(self, table: Table, at: str, values: Sequence[str]) -> str:
        # Each of the three needs the one before it. What else the caller's transaction waits for has its own limit.
        kinds = (kind.removeprefix("LONG") for _, kind in table.columns)
        row = ", ".join(f"CAST({value} AS {kind})" for value, kind in zip(values, kinds, strict=True))
        limited = (
            f"SELECT current_setting('lock_timeout') AS was, "
            f"set_config('lock_timeout', '{max(1, int(self.timeout * 750))}', true)"
        )
        added = f"INSERT INTO {at} ({', '.join(table.names)}) SELECT {row} FROM limited RETURNING 1"  # noqa: S608
        back = "SELECT set_config('lock_timeout', limited.was, true) FROM limited JOIN added ON true"
        return f"WITH limited AS ({limited}), added AS ({added}) {back}"

    def limit(self, connection: Any, seconds: float | None) -> None:
        connection.limit = seconds

    def fault(self, error: Exception) -> Fault:
        if isinstance(error, Unanswered):
            return SILENT
        return of_postgresql(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "", str(error))

    def is_broken(self, connection: Any) -> bool:
        return bool(connection.closed)


class MySQL(Dialect):
    kind, extra = "mysql", "mysql"
    drivers: Mapping[str, str] = {"MySQLdb": "mysqlclient", "pymysql": "PyMySQL"}
    # No UNIX_TIMESTAMP: it goes by the session's time zone, in which an hour of autumn comes twice.
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

    def __init__(self, timeout: float, *, mariadb: bool) -> None:
        self.timeout = timeout
        self._tls_contexts: dict[str, Any] = {}
        self.title = "MariaDB" if mariadb else "MySQL"  # a URL that says MySQL may be mistaken: see connected()

    def connect_args(self) -> dict[str, Any]:
        return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), self.timeout)

    def connect(self, *place: Any, **given: Any) -> Any:
        from .pymysql_connection import connect

        return connect({"charset": "utf8mb4", **given, "autocommit": True}, KEEPALIVE, self._tls_contexts)

    def adopt(self, connection: Any) -> Any:
        if not hasattr(connection, "_read_timeout"):
            connection = WatchedMySQL(connection, self.timeout)
        keep_alive(connection._sock, KEEPALIVE)
        return connection

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def create(self, table: Table, at: str) -> Iterator[str]:
        indexes = "".join(f", INDEX {name} ({columns})" for name, columns in table.indexes)
        # Another engine has no transactions.
        yield f"CREATE TABLE {at} ({self._columns(table, 'LONGTEXT')}{indexes}) ENGINE=InnoDB"

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
        for statement in statements:
            execute(connection, statement)

    def begin(self, connection: Any, seconds: float) -> str:
        return "START TRANSACTION"

    def limit(self, connection: Any, seconds: float | None) -> None:
        if isinstance(connection, Watched):
            connection.limit = seconds
        else:
            connection._read_timeout = seconds  # PyMySQL sets it when it connects, and in no other public way

    def fault(self, error: Exception) -> Fault:
        if isinstance(error, Unanswered):
            return SILENT
        return of_mysql(error.args[0] if error.args else 0, str(error))

    def is_broken(self, connection: Any) -> bool:
        return not connection.open


class SQLite(Dialect):
    title, kind, extra = "SQLite", "sqlite", "sqlite"
    # No function of ours, in Python: SQLite would swallow the exception that a signal's handler raises in it.
    clock = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
    placeholder: Placeholder = "?"
    locking = ("", "")  # the whole file is locked

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def connect_args(self) -> dict[str, Any]:
        return {"timeout": self.timeout, "check_same_thread": False}

    def connect(self, *place: Any, **given: Any) -> Any:
        return sqlite3.connect(*place, **{**given, "isolation_level": None})

    def connected(self, connection: Any) -> None:
        self._change_to_wal(connection)
        # What a loss of power could take is of no use after it: everybody who had a lock is gone with the machine.
        connection.execute("PRAGMA synchronous = NORMAL").close()

    def _change_to_wal(self, connection: Any) -> None:
        """Also where others use the file at this moment: SQLite does not wait where this has to change it."""
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

    def fault(self, error: Exception) -> Fault:
        return of_sqlite(str(error))
