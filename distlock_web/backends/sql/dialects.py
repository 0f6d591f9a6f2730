"""What differs between the databases: how to connect, to begin, to read the clock, and what their errors mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Executable, bindparam, func, literal_column, select
from sqlalchemy.exc import DBAPIError

from ...core.runtime import IDENT_DIGITS

#: again: nothing was done, and it may be tried again at once; gone: the connection broke; silent: no answer in time;
#: locked: others keep the row; no_table; wrong: the settings or a right; not_now: it cannot, at the moment; unknown.
Kind = Literal["again", "gone", "silent", "locked", "no_table", "wrong", "not_now", "unknown"]


class Fault(NamedTuple):
    kind: Kind
    meaning: str = ""  #: what the database does, after its name


def channel_of(token: str) -> str:
    """Where the store of this token listens."""
    return f"distlock_{token[:IDENT_DIGITS]}"


#: Seconds after which a MySQL ends a connection that says nothing. One that was only idle is made anew at its next use.
MYSQL_SILENCE = 60

#: Seconds between two questions of the kernel on a connection that says nothing. It is dead after three without answer.
KEEPALIVE = 3

AGAIN, GONE, SILENT = Fault("again"), Fault("gone"), Fault("silent", "does not answer")
NO_TABLE = Fault("no_table", "has no table for locks, or one of another version")
_LOCKED = Fault("locked", "keeps the row of the lock locked: another transaction does not end")
_READ_ONLY = Fault("not_now", "is read-only, a replica perhaps: locks need one that can be written to")
_PASSWORD = Fault("wrong", "does not accept this user and password")
_RIGHTS = Fault(
    "wrong", "does not allow this user what locks need: SELECT, INSERT, UPDATE and DELETE on its four tables"
)
_INSECURE = Fault(
    "wrong", 'accepts encrypted connections only: OPTIONS["connect_args"], such as {"ssl_ca": "/etc/ssl/db.pem"}'
)
_INTERRUPTED = Fault("not_now", "was told to interrupt the request")
_NO_DATABASE = Fault("wrong", "does not exist")
_FULL = Fault("not_now", "has no more connections to give")
_STARTING = Fault("not_now", "is starting or shutting down")


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
    _codes: ClassVar[Mapping[str, Fault]] = {
        "40001": AGAIN, "40P01": AGAIN, "23505": AGAIN,
        "55P03": _LOCKED, "57014": _LOCKED,
        "42P07": AGAIN, "42P01": NO_TABLE, "42703": NO_TABLE, "3F000": NO_TABLE,
        "25006": _READ_ONLY, "42501": _RIGHTS, "28P01": _PASSWORD, "28000": _PASSWORD, "3D000": _NO_DATABASE,
        "53300": _FULL, "57P01": GONE, "57P02": GONE, "57P03": _STARTING, "25P03": GONE,
    }  # fmt: skip
    # Before it is connected there are no codes, only words.
    _phrases: ClassVar[Mapping[str, Fault]] = {
        "password authentication failed": _PASSWORD,
        "no password supplied": _PASSWORD,
        "no pg_hba.conf entry": _PASSWORD,
        "no such user": _PASSWORD,  # PgBouncer's words
        'role "': _PASSWORD,
        "does not exist": _NO_DATABASE,
        "no such database": _NO_DATABASE,
        "too many clients": _FULL,
        "remaining connection slots": _FULL,
        "starting up": _STARTING,
        "shutting down": _STARTING,
        "invalid connection option": Fault("wrong", "cannot be connected to with these options"),
        "timeout expired": SILENT,
        "did not answer": SILENT,
    }

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

    def limit(self, connection: Any, seconds: float | None) -> None:
        connection.limit = seconds

    def fault(self, error: DBAPIError) -> Fault:
        code: str | None = getattr(error.orig, "sqlstate", None)
        return self._codes.get(code or "") or _by_phrase(self._phrases, error)


class MySQL(Dialect):
    driver, extra = "mysql+pymysql", "mysql"
    # No UNIX_TIMESTAMP: it goes by the session's time zone, in which an hour of autumn comes twice.
    clock: ColumnElement[int] = literal_column("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", BigInteger)
    _codes: ClassVar[Mapping[int, Fault]] = {
        # 3101: another member of a group of MySQL servers has changed the same row.
        1050: AGAIN, 1213: AGAIN, 1062: AGAIN, 1586: AGAIN, 1020: AGAIN, 1412: AGAIN, 3101: AGAIN,
        1205: _LOCKED, 3572: _LOCKED, 3024: _LOCKED, 1969: _LOCKED, 1317: _INTERRUPTED,
        1146: NO_TABLE, 1054: NO_TABLE,
        1290: _READ_ONLY, 1792: _READ_ONLY, 1836: _READ_ONLY,
        1045: _PASSWORD, 1698: _PASSWORD, 1130: _PASSWORD, 1251: _PASSWORD, 2059: _PASSWORD,
        1862: _PASSWORD, 3118: _PASSWORD, 3955: _PASSWORD, 4151: _PASSWORD, 3159: _INSECURE,
        1044: _RIGHTS, 1142: _RIGHTS, 1143: _RIGHTS, 1227: _RIGHTS, 1049: _NO_DATABASE,
        1040: _FULL, 1203: _FULL, 1226: _FULL, 1053: _STARTING, 1077: _STARTING, 3032: _STARTING, 3168: _STARTING,
        2006: GONE, 2013: GONE, 1927: GONE, 3169: GONE, 4031: GONE,
    }  # fmt: skip

    def __init__(self, timeout: float, *, mariadb: bool) -> None:
        self.timeout = timeout
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

        return connect(given, KEEPALIVE)

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
        if "timed out" in str(error.orig):
            return SILENT
        code = error.orig.args[0] if error.orig is not None and error.orig.args else 0
        return self._codes.get(code, Fault("unknown"))


class SQLite(Dialect):
    title, driver, extra = "SQLite", "sqlite+pysqlite", "sqlite"
    # No function of ours, in Python: SQLite would swallow the exception that a signal's handler raises in it.
    clock: ColumnElement[int] = literal_column(
        "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000", BigInteger
    )
    _phrases: ClassVar[Mapping[str, Fault]] = {
        "database is locked": Fault("locked", "is locked: another program keeps its write lock"),
        "UNIQUE constraint failed": AGAIN,
        "already exists": AGAIN,
        "no such table": NO_TABLE,
        "no such column": NO_TABLE,
        "has no column": NO_TABLE,
        "readonly database": Fault("not_now", "cannot be written to"),
        "unable to open": Fault("wrong", "cannot be opened: there has to be a folder that can be written to"),
        "not a database": Fault("wrong", "is no SQLite database"),
        "is full": Fault("not_now", "has no room on its disk"),
        "disk I/O error": Fault("not_now", "cannot be read or written"),
    }

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def connect_args(self) -> dict[str, Any]:
        return {"timeout": self.timeout, "check_same_thread": False}

    def connected(self, connection: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL").close()
        # What a loss of power could take is of no use after it: everybody who had a lock is gone with the machine.
        connection.execute("PRAGMA synchronous = NORMAL").close()

    def begin(self, connection: Any, seconds: float) -> str:
        connection.execute(f"PRAGMA busy_timeout = {max(1, int(seconds * 1000))}").close()
        return "BEGIN IMMEDIATE"

    def limit(self, connection: Any, seconds: float | None) -> None:
        """Nothing: it waits for the write lock only, at the beginning."""

    def fault(self, error: DBAPIError) -> Fault:
        return _by_phrase(self._phrases, error)


def _by_phrase(phrases: Mapping[str, Fault], error: DBAPIError) -> Fault:
    text = str(error.orig)
    return next((fault for phrase, fault in phrases.items() if phrase in text), Fault("unknown"))
