"""Where callers stop: before each statement and end of a transaction, and where the code says so."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from . import statements
from .databases import KINDS, Connect, RacedDatabase
from .scheduler import Caller, RaceRefused, Step, running

T = TypeVar("T")

NO_ASYNC = (
    "race: async code is not supported: which of its coroutines runs when is the event loop's choice. "
    "Race a sync view that calls the same functions."
)


def step(text: str = "") -> None:
    """A stop of your own, for what no statement shows: a cache, a file, a mail. Outside of a race it does nothing."""
    caller = running()
    if caller is not None:
        caller.stop(Step(text or "step", statements.users_line(), by_user=True))


IN_MEMORY = (
    "race: the database is an SQLite in memory, which has no locks between connections as a file has. Give the tests a "
    'file, in Django by DATABASES = {"default": {…, "TEST": {"NAME": BASE_DIR / "test.sqlite3"}}}; or PostgreSQL, or '
    "MariaDB."
)


_HERE = ("localhost", "127.0.0.1", "::1")


class Watch:
    """The databases of a race, and everything that is sent to them."""

    def __init__(self) -> None:
        self.databases: dict[tuple[str, ...], RacedDatabase] = {}
        self._users: dict[int, tuple[Any, Caller]] = {}
        self._aside = threading.local()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread does now is no statement of a caller's: a store's of our locks, or ours."""
        before, self._aside.on = getattr(self._aside, "on", False), True
        try:
            yield
        finally:
            self._aside.on = before

    def database(
        self, vendor: str, name: str, host: str, port: object, connect: Connect, not_of_tests: str
    ) -> RacedDatabase:
        """One for each, by however many ways it is reached: its rows are put back once.

        ``not_of_tests``: why it is not taken for a database of tests. Then it is not written to.
        """
        if vendor not in KINDS:
            raise RaceRefused(
                f"race: it cannot tell who waits in {vendor}. It knows PostgreSQL, MariaDB, MySQL and SQLite."
            )
        kind = KINDS[vendor]
        where = str(Path(name).resolve()) if kind == "sqlite" else name
        host = "" if host in _HERE or host.startswith("/") else host
        port = port or {"postgresql": 5432, "mysql": 3306}.get(kind, "")
        return self.databases.setdefault(
            (kind, where, host, str(port)), RacedDatabase(name, kind, connect, not_of_tests)
        )

    def restore(self) -> None:
        """In each database, whatever one of them says."""
        with self.aside(), ExitStack() as stack:
            for database in self.databases.values():
                stack.callback(database.restore)

    def close(self) -> None:
        with suppress(Exception):  # rows that Ctrl-C has left: it came while they were put back
            self.restore()
        for database in self.databases.values():
            database.close()

    def begin(self) -> None:
        """Another order begins, with other threads."""
        self._users.clear()

    def sent(
        self,
        database: RacedDatabase,
        connection: Any,
        sql: str,
        parameters: object,
        execute: Callable[[], T],
        row_lock: str,
    ) -> tuple[T, Step | None]:
        """Execute it, when it is its turn; and what the report says of it. ``row_lock`` is what would lock its rows."""
        if getattr(self._aside, "on", False):
            return execute(), None
        caller = running()
        said: Step | None = None
        table = statements.written(sql)
        if caller is not None:
            self._refuse_shared(caller, connection)
            if statements.is_noticed(sql):
                said = Step(
                    statements.short(sql, parameters),
                    statements.users_line(),
                    statements.table_of(sql),
                    table is not None,
                    statements.columns_set(sql),
                    row_lock="" if database.kind == "sqlite" or statements.is_locking(sql) else row_lock,
                )
                caller.stop(said)
        if table is not None and (caller is None or not caller.order.ending):
            try:
                with self.aside():
                    database.keep(table)
            except RaceRefused as error:
                if caller is not None:
                    caller.order.refused = error
                raise
        if caller is None:
            return execute(), None
        return self._executed(caller, database, connection, sql, said, execute), said

    def ended(self, database: RacedDatabase, connection: Any, word: str, end: Callable[[], object]) -> None:
        """COMMIT or ROLLBACK."""
        caller = running()
        if caller is None or getattr(self._aside, "on", False) or not _in_transaction(connection):
            end()
            return
        said = Step(word, statements.users_line())
        caller.stop(said)
        self._executed(caller, database, connection, word, said, end)

    def _executed(
        self,
        caller: Caller,
        database: RacedDatabase,
        connection: Any,
        sql: str,
        said: Step | None,
        execute: Callable[[], T],
    ) -> T:
        try:
            if database.kind == "sqlite":
                return _through_the_file(caller, database, connection, sql, said, execute)
            return caller.send(database, connection, execute)
        finally:
            database.done(connection)

    def given_back(self, connection: Any) -> None:
        """To the pool: the next one that takes it has it alone."""
        self._users.pop(id(connection), None)

    def _refuse_shared(self, caller: Caller, connection: Any) -> None:
        _, other = self._users.setdefault(id(connection), (connection, caller))
        if other is not caller and other.order is caller.order and other.state != "ended":
            raise refuse(
                caller,
                f"race: {other.name} and {caller.name} have one connection to the database, so neither sees what the "
                f"other has not committed. An engine in memory or with StaticPool, and a session that is bound to a "
                f"connection, are not what the site has: give the test an engine for a file or a server.",
            )


def refuse(caller: Caller, why: str) -> RaceRefused:
    """The error that the test gets, even if the view makes an answer of it."""
    caller.order.refused = error = RaceRefused(why)
    return error


def _through_the_file(
    caller: Caller, database: RacedDatabase, connection: Any, sql: str, said: Step | None, execute: Callable[[], T]
) -> T:
    """SQLite waits for its file by itself, in its busy handler, and does not say so. So it is to refuse, and we wait.

    It waits only where it has read nothing in this transaction: what it has read would be old when it may write.
    """
    caller.use(database, connection)
    [timeout] = connection.execute("PRAGMA busy_timeout").fetchone()
    may_wait = timeout > 0 and (id(connection) not in caller.touched or sql == "COMMIT")
    while True:
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            done = execute()
            break
        except Exception as error:
            if not may_wait or not _is_busy(error):
                raise
            if said is not None:
                said.note = "waits"
            again = Step("goes on", caller=caller.number)
            if not caller.wait(database.name, again, patient=False):
                raise
        finally:
            connection.execute(f"PRAGMA busy_timeout = {timeout}")
            if not connection.in_transaction:
                caller.touched.discard(id(connection))
                caller.order.give_back(database.name)
    if connection.in_transaction and statements.is_noticed(sql):
        caller.touched.add(id(connection))
    return done


def _is_busy(error: BaseException) -> bool:
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    return isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_BUSY_RECOVERY,
    )


def _in_transaction(connection: Any) -> bool:
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction
    if (info := getattr(connection, "info", None)) is not None and hasattr(info, "transaction_status"):
        return int(info.transaction_status) != 0  # libpq's IDLE
    if (status := getattr(connection, "server_status", None)) is not None:
        return bool(status & 1)  # MySQL's SERVER_STATUS_IN_TRANS
    return True


def note_rows(said: Step, description: Any, rows: Any) -> None:
    if rows and not said.found and description:
        said.values = list(zip([column[0] for column in description], rows[0], strict=False))
    said.found = (said.found or 0) + len(rows)
