"""A database of the callers, over a connection of our own: who waits there for whom, and how its rows were before."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from .scheduler import RaceRefused

Kind = Literal["sqlite", "postgresql", "mysql"]
KINDS: dict[str, Kind] = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}

#: Gives a DBAPI connection of our own, and what closes it.
Connect = Callable[[], tuple[Any, Callable[[], object]]]

#: Seconds that a statement may take where we may not ask whether it waits.
UNKNOWN = 0.5
#: Of a connection of MySQL's: it waits for GET_LOCK, or for the form of a table.
_WAITING = "(state = 'User lock' OR state LIKE 'Waiting for % lock')"
#: More rows are no state that is made anew before each order.
MOST_ROWS = 20_000


class RacedDatabase:
    def __init__(self, name: str, kind: Kind, connect: Connect, not_of_tests: str) -> None:
        self.name = name
        self.kind = kind
        self._connect = connect
        self._not_of_tests = not_of_tests
        self._own: Any = None
        self._close: Callable[[], object] = lambda: None
        self._kept: dict[str, RacedTable] = {}
        self._written: set[str] = set()  #: since they were put back
        self._statements: dict[int, float] = {}  #: since when they run, where we may not ask
        self._blind = False
        self._busy = threading.RLock()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._busy:
            if self._own is None:
                self._own, self._close = self._connect()
                for statement in _SESSION[self.kind]:
                    self._may_fail(statement)
            cursor = self._own.cursor()
            try:
                cursor.execute(sql)
                return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            finally:
                cursor.close()

    def close(self) -> None:
        with self._busy, suppress(Exception):
            self._own = None
            self._close()

    # Who waits --------------------------------------------------------------------------------------------------------

    def waits(self, connection: Any) -> bool:
        """Whether the statement that runs on this connection waits for another transaction."""
        if self.kind == "sqlite":  # its waiting is ours: stops.py
            return False
        try:
            pid = backend_pid(connection)
            if self.kind == "postgresql":
                return bool(self.query(f"SELECT cardinality(pg_blocking_pids({pid}))")[0][0])
            return _waits_in_innodb(self.query("SHOW ENGINE INNODB STATUS")[0][2], pid) or bool(
                self.query(f"SELECT 1 FROM information_schema.processlist WHERE id = {pid} AND {_WAITING}")
            )
        except Exception:  # no right to ask: MySQL's PROCESS
            self._blind = True
        since = self._statements.setdefault(id(connection), time.monotonic())
        return time.monotonic() - since > UNKNOWN

    def done(self, connection: Any) -> None:
        if self._blind:
            self._statements.pop(id(connection), None)

    def interrupt(self, connection: Any) -> None:
        with suppress(Exception):
            if self.kind == "postgresql":
                self.query(f"SELECT pg_cancel_backend({backend_pid(connection)})")
            elif self.kind == "mysql":
                self.query(f"KILL QUERY {backend_pid(connection)}")

    def cut(self, connection: Any) -> None:
        """End it: its thread does not, and its transaction would stay open."""
        with suppress(Exception):
            if self.kind == "postgresql":
                self.query(f"SELECT pg_terminate_backend({backend_pid(connection)})")
            elif self.kind == "mysql":
                self.query(f"KILL {backend_pid(connection)}")
            else:
                connection.close()

    # The rows ---------------------------------------------------------------------------------------------------------

    def keep(self, table: str) -> None:
        """Before a write: the rows that the table had before the first come back with :meth:`restore`."""
        if self._not_of_tests:
            raise RaceRefused(
                f"race: the database {self.name!r} would be put back as it was, without what others write meanwhile. "
                f"{self._not_of_tests}"
            )
        if self.kind == "sqlite":  # in raw SQL the same table may be written in other letters
            table = table.lower()
        self._written.add(table)
        if table in self._kept:
            return
        with self._busy:
            try:
                if self.kind == "postgresql" and not self._is_table(table):
                    self._kept[table] = RacedTable(self, table.lower(), len(self._kept))
                    return
                self._kept[table] = RacedTable(self, table, len(self._kept))
            except RaceRefused:
                raise
            except Exception as error:
                raise RaceRefused(f"race: the rows of {table!r} cannot be read, to put them back: {error}") from error

    def _is_table(self, table: str) -> bool:
        quoted = ".".join(f'"{part}"' for part in table.split("."))
        return self.query(f"SELECT to_regclass('{quoted}')")[0][0] is not None

    def restore(self) -> None:
        """All tables that were written are as they were."""
        written = [table for name, table in self._kept.items() if name in self._written]
        if not written:
            return
        with self._busy:
            try:
                self._transaction([each for table in written for each in table.restoring()], written)
            except Exception as error:
                self._written.clear()
                raise RaceRefused(
                    f"race: the rows cannot be put back. Has the test a transaction open that holds them? {error}"
                ) from error
            self._written.clear()  # not before: after Ctrl-C they are put back once more
            for table in written:
                table.count_on()

    def _transaction(self, statements: list[str], tables: list[RacedTable]) -> None:
        self.query("BEGIN")
        try:
            try:
                self._all(statements)
            except Exception as error:
                if not _is_integrity(error) or not self._ignores_references():
                    raise
                # Rows that have swapped a unique value: no order of updates is right.
                self._all([each for table in tables for each in table.anew()])
            self.query("COMMIT")
        except BaseException:
            self._may_fail("ROLLBACK")
            raise

    def _ignores_references(self) -> bool:
        """Else a DELETE would take the rows of other tables with it."""
        return self.kind != "postgresql" or self.query("SHOW session_replication_role")[0][0] == "replica"

    def _may_fail(self, statement: str) -> None:
        with suppress(Exception):  # only a superuser of PostgreSQL may
            self.query(statement)

    def _all(self, statements: list[str]) -> None:
        """In an order in which no row refers to one that is not there."""
        while statements:
            failed: dict[str, Exception] = {}
            for statement in statements:
                self.query("SAVEPOINT distlock_race")
                try:
                    self.query(statement)
                except Exception as error:
                    self.query("ROLLBACK TO SAVEPOINT distlock_race")
                    failed[statement] = error
                self.query("RELEASE SAVEPOINT distlock_race")
            if len(failed) == len(statements):
                raise next(iter(failed.values()))
            statements = list(failed)


#: Of our own connection: rows are put back in any order, and the wait for one that is locked has an end.
_SESSION: dict[Kind, list[str]] = {
    "sqlite": ["PRAGMA foreign_keys = OFF", "PRAGMA synchronous = OFF", "PRAGMA busy_timeout = 5000"],
    "mysql": ["SET FOREIGN_KEY_CHECKS = 0", "SET innodb_lock_wait_timeout = 5", "SET lock_wait_timeout = 2"],
    "postgresql": ["SET lock_timeout = 5000", "SET session_replication_role = replica"],
}


class RacedTable:
    """A copy of the rows of one table, in the database itself: so no value changes on its way here and back."""

    def __init__(self, database: RacedDatabase, name: str, number: int) -> None:
        self._database = database
        self._kind = database.kind
        mark = "`" if self._kind == "mysql" else '"'
        self._quote: Callable[[str], str] = lambda text: mark + text + mark
        self.name = ".".join(map(self._quote, name.split(".")))
        self.copy = f"distlock_race_{number}"
        [(count,)] = database.query(f"SELECT count(*) FROM {self.name}")
        if count > MOST_ROWS:
            raise RaceRefused(
                f"race: {name!r} has {count} rows, which are put back after each order. Keep {MOST_ROWS}."
            )
        database.query(f"CREATE TEMPORARY TABLE {self.copy} AS SELECT * FROM {self.name}")
        columns = self._columns(name)
        self.columns = [self._quote(column) for column, _, made in columns if not made]
        self.key = [self._quote(column) for column, of_key, _ in columns if of_key]
        self._counter = self._read_counter(name)

    def _columns(self, name: str) -> list[tuple[str, bool, bool]]:
        """Name, whether it is of the primary key, whether the database makes its values."""
        query, bare = self._database.query, name.rpartition(".")[2]
        if self._kind == "sqlite":
            return [(row[1], row[5] > 0, row[6] in (2, 3)) for row in query(f"PRAGMA table_xinfo({self._quote(bare)})")]
        if self._kind == "postgresql":
            return [
                (column, bool(of_key), bool(made))
                for column, of_key, made in query(
                    "SELECT a.attname, a.attnum = ANY(i.indkey), a.attgenerated <> '' FROM pg_attribute a"
                    " LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary"
                    f" WHERE a.attrelid = '{self.name}'::regclass AND a.attnum > 0 AND NOT a.attisdropped"
                )
            ]
        return [
            (column, key == "PRI", "GENERATED" in extra.replace("DEFAULT_GENERATED", ""))
            for column, key, extra in query(
                "SELECT column_name, column_key, extra FROM information_schema.columns"
                f" WHERE table_schema = database() AND table_name = '{bare}'"
            )
        ]

    def anew(self) -> list[str]:
        return [f"DELETE FROM {self.name}", self._insert()]

    def _insert(self) -> str:
        columns, copied = ", ".join(self.columns), ", ".join(f"c.{column}" for column in self.columns)
        system = "OVERRIDING SYSTEM VALUE" if self._kind == "postgresql" else ""
        return f"INSERT INTO {self.name} ({columns}) {system} SELECT {copied} FROM {self.copy} c"

    def restoring(self) -> list[str]:
        if not self.key:
            return self.anew()
        same = " AND ".join(f"c.{column} = {self.name}.{column}" for column in self.key)
        rest = [column for column in self.columns if column not in self.key]
        made = ", ".join(f"{column} = c.{column}" for column in rest)
        statements = [f"DELETE FROM {self.name} WHERE NOT EXISTS (SELECT 1 FROM {self.copy} c WHERE {same})"]
        if rest and self._kind == "mysql":
            made = ", ".join(f"{self.name}.{column} = c.{column}" for column in rest)
            statements.append(f"UPDATE {self.name} JOIN {self.copy} c ON {same} SET {made}")
        elif rest:
            statements.append(f"UPDATE {self.name} SET {made} FROM {self.copy} c WHERE {same}")
        there = f"SELECT 1 FROM {self.name} WHERE {same}"
        return [*statements, f"{self._insert()} WHERE NOT EXISTS ({there})"]

    # The number of the next row: without it an answer with an id would be another one each time. -------------------

    def _read_counter(self, name: str) -> Any:
        query, bare = self._database.query, name.rpartition(".")[2]
        with suppress(Exception):
            if self._kind == "sqlite":
                found = query(f"SELECT seq FROM sqlite_sequence WHERE name = '{bare}'")
                return found[0][0] if found else 0
            if self._kind == "mysql":
                self._database._may_fail("SET SESSION information_schema_stats_expiry = 0")  # of MySQL 8
                return self._next_id(bare)
            if len(self.key) == 1:
                column = self.key[0].strip('"')
                [(sequence,)] = query(f"SELECT pg_get_serial_sequence('{self.name}', '{column}')")
                if sequence is not None:
                    return (sequence, *query(f"SELECT last_value, is_called FROM {sequence}")[0])
        return None

    def _next_id(self, bare: str) -> Any:
        where = f"table_schema = database() AND table_name = '{bare}'"
        return self._database.query(f"SELECT auto_increment FROM information_schema.tables WHERE {where}")[0][0]

    def count_on(self) -> None:
        if self._counter is None:
            return
        query, bare = self._database.query, self.name.rpartition(".")[2][1:-1]
        try:
            if self._kind == "sqlite":
                query(f"UPDATE sqlite_sequence SET seq = {self._counter} WHERE name = '{bare}'")
            elif self._kind == "postgresql":
                sequence, last, called = self._counter
                query(f"SELECT setval('{sequence}', {last}, {called})")
            elif self._next_id(bare) != self._counter:
                query(f"ALTER TABLE {self.name} AUTO_INCREMENT = {self._counter}")
        except Exception:  # another program still reads the table: not waited for again after each order
            self._counter = None


def backend_pid(connection: Any) -> int:
    """What the server calls this connection: of psycopg, psycopg2, PyMySQL or mysqlclient."""
    if hasattr(connection, "thread_id"):
        return int(connection.thread_id())
    if hasattr(connection, "get_backend_pid"):
        return int(connection.get_backend_pid())
    return int(connection.info.backend_pid)


def _is_integrity(error: Exception) -> bool:
    return any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)  # of each driver


def _waits_in_innodb(status: str, pid: int) -> bool:
    """By the status, which is read anew each time: the tables of information_schema are up to 0.1 s old, and asking
    more often keeps them so."""
    for transaction in status.split("---TRANSACTION ")[1:]:
        if re.search(rf"thread id {pid}\b", transaction):
            return "LOCK WAIT" in transaction
    return False
