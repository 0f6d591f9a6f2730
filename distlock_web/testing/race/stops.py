"""Where callers stop: before each statement and end of a transaction, before our locks, and where the code says so."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from distlock_web.core.backend import Busy, Claim, Granted, Port
from distlock_web.core.errors import LockBusy
from distlock_web.core.registry import Store
from distlock_web.core.runtime import TASKS, Runtime

from . import statements
from .databases import KINDS, Connect, Database
from .scheduler import Caller, Refused, Step, running

T = TypeVar("T")

_NO_ASYNC = (
    "race: async code is not supported: which of its coroutines runs when is the event loop's choice. "
    "Race a sync view that calls the same functions."
)


def step(text: str = "") -> None:
    """A stop of your own, for what no statement shows: a cache, a file, a mail. Outside of a race it does nothing."""
    caller = running()
    if caller is not None:
        caller.stop(Step(text or "step", statements.users_line(), by_user=True))


_IN_MEMORY = (
    "race: the database is an SQLite in memory, which has no locks between connections as a file has. Give the tests a "
    'file, in Django by DATABASES = {"default": {…, "TEST": {"NAME": BASE_DIR / "test.sqlite3"}}}; or PostgreSQL, or '
    "MariaDB."
)


class Watch:
    """The databases of a race, and everything that is sent to them."""

    def __init__(self) -> None:
        self.databases: dict[tuple[str, ...], Database] = {}
        self._users: dict[int, tuple[Any, Caller]] = {}
        self._aside = threading.local()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What this thread does now is nobody's statement: a store's of our locks, ours."""
        before, self._aside.on = getattr(self._aside, "on", False), True
        try:
            yield
        finally:
            self._aside.on = before

    def database(self, vendor: str, name: str, port: object, connect: Connect) -> Database:
        """One for each, by however many ways it is reached: its rows are put back once."""
        if vendor not in KINDS:
            raise Refused(
                f"race: it cannot tell who waits in {vendor}. It knows PostgreSQL, MariaDB, MySQL and SQLite."
            )
        kind = KINDS[vendor]
        where = str(Path(name).resolve()) if kind == "sqlite" else name
        port = port or {"postgresql": 5432, "mysql": 3306}.get(kind, "")
        return self.databases.setdefault((kind, where, str(port)), Database(name, kind, connect))

    def close(self) -> None:
        for database in self.databases.values():
            database.close()

    def begin(self) -> None:
        """Another order begins, with other threads."""
        self._users.clear()

    def sent(
        self,
        database: Database,
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
            with self.aside():
                database.keep(table)
        if caller is None:
            return execute(), None
        return self._executed(caller, database, connection, sql, said, execute), said

    def ended(self, database: Database, connection: Any, word: str, end: Callable[[], object]) -> None:
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
        database: Database,
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

    def _refuse_shared(self, caller: Caller, connection: Any) -> None:
        _, other = self._users.setdefault(id(connection), (connection, caller))
        if other is not caller and other.order is caller.order and other.state != "ended":
            raise refuse(
                caller,
                f"race: {other.name} and {caller.name} have one connection to the database, so neither sees what the "
                f"other has not committed. An engine in memory or with StaticPool, and a session that is bound to a "
                f"connection, are not what the site has: give the test an engine for a file or a server.",
            )


def refuse(caller: Caller, why: str) -> Refused:
    """The error that the test gets, even if the view makes an answer of it."""
    caller.order.refused = error = Refused(why)
    return error


def _through_the_file(
    caller: Caller, database: Database, connection: Any, sql: str, said: Step | None, execute: Callable[[], T]
) -> T:
    """SQLite waits for its file by itself, in its busy handler, and tells nobody. So it is to refuse, and we wait.

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


# Our locks ------------------------------------------------------------------------------------------------------------


@contextmanager
def at_our_locks(watch: Watch) -> Iterator[None]:
    """Callers stop before each acquire and release, and wait for a lock here, where it is known."""
    port_of = Store.port

    def port(store: Store, runtime: Runtime) -> Port:
        found, caller = port_of(store, runtime), running()
        if caller is None:
            return found
        if runtime is TASKS:
            raise refuse(caller, _NO_ASYNC)
        return _StoppingPort(found, store, caller, watch)

    Store.port = port  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Store.port = port_of  # type: ignore[method-assign]


class _StoppingPort:
    def __init__(self, port: Port, store: Store, caller: Caller, watch: Watch) -> None:
        self.runtime = port.runtime
        self._port = port
        self._caller = caller
        self._watch = watch
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        send = getattr(self._port, verb)

        async def sent(*args: Any) -> Any:
            with self._watch.aside():
                return await send(*args)

        return sent

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        said = Step(f"acquire {claim.name!r}", statements.users_line())
        self._caller.stop(said)
        with self._watch.aside():
            answer = await self._port.acquire(claim, wait)
        if isinstance(answer, Busy):
            said.note = "is done" if answer.record else "is busy" if wait == 0 or answer.final else "waits"
            self._caller.refused |= said.note == "is busy"
        return answer

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        again = Step(f"acquire {claim.name!r}, after waiting", statements.users_line(), caller=self._caller.number)
        if not self._caller.wait((self._store, claim.name), again, patient=seconds is None):
            self._caller.refused = True
            raise LockBusy(f"The lock {claim.name!r} is not given back while all others wait.", name=claim.name)
        with self._watch.aside():
            return await self._port.acquire(claim, seconds)

    async def release(self, claim: Claim, *args: Any) -> Any:
        return await self._give_back("release", claim, *args)

    async def cancel(self, claim: Claim) -> Any:
        return await self._give_back("cancel", claim)

    async def detach(self, claim: Claim, *args: Any) -> Any:
        return await self._give_back("detach", claim, *args)

    async def _give_back(self, verb: str, claim: Claim, *args: Any) -> Any:
        if verb == "release":
            self._caller.stop(Step(f"release {claim.name!r}", statements.users_line()))
        try:
            with self._watch.aside():
                return await getattr(self._port, verb)(claim, *args)
        finally:
            self._caller.order.give_back((self._store, claim.name))


# Django ---------------------------------------------------------------------------------------------------------------


class Django:
    """Django's connections, of the test's thread and of each caller's."""

    def __init__(self, watch: Watch) -> None:
        from django.db import connections

        self._watch = watch
        self._connections = connections
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                raise Refused(
                    f"race: a transaction is open on the database {connection.alias!r}: callers have connections of "
                    "their own, and would see nothing of what the test has made. pytest: "
                    "@pytest.mark.django_db(transaction=True). unittest: TransactionTestCase in place of TestCase."
                )

    @contextmanager
    def connected(self) -> Iterator[None]:
        """What this thread sends to its connections is watched. They are closed at the end, if it is a caller's."""
        undo = [self._watch_one(self._connections[alias]) for alias in self._connections]
        try:
            yield
        finally:
            if running() is not None:
                for connection in self._connections.all(initialized_only=True):
                    connection.close()
            for each in undo:
                each()

    def _watch_one(self, connection: Any) -> Callable[[], None]:
        watch, settings = self._watch, connection.settings_dict

        @cache
        def database() -> Database:
            return watch.database(
                connection.vendor, str(settings["NAME"]), settings["PORT"], lambda: _own_of_django(connection)
            )

        def statement(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
            known, caller = database(), running()
            if caller is not None and connection.vendor == "sqlite" and connection.is_in_memory_db():
                raise refuse(caller, _IN_MEMORY)
            result, said = watch.sent(
                known,
                connection.connection,
                sql,
                parameters,
                lambda: execute(sql, parameters, many, context),
                "select_for_update()",
            )
            if said is not None and statements.is_read(sql):
                _listen(context["cursor"], said)
            return result

        def ends(word: str, end: Callable[[], None]) -> Callable[[], None]:
            return lambda: (
                watch.ended(database(), connection.connection, word, end) if connection.connection is not None else None
            )

        connection.execute_wrappers.append(statement)
        connection._commit = ends("COMMIT", connection._commit)
        connection._rollback = ends("ROLLBACK", connection._rollback)

        def undo() -> None:
            connection.execute_wrappers.remove(statement)
            del connection._commit, connection._rollback

        return undo


def _own_of_django(connection: Any) -> tuple[Any, Callable[[], object]]:
    own = connection.copy()
    own.inc_thread_sharing()
    own.connect()
    return own.connection, own.close


def _listen(cursor: Any, said: Step) -> None:
    """The rows are fetched later: note how many, and the first."""
    said.found = 0

    def noting(fetch: Callable[..., Any], many: bool) -> Callable[..., Any]:
        def fetched(*args: Any) -> Any:
            rows = fetch(*args)
            note_rows(said, cursor.description, rows if many else [rows] if rows is not None else [])
            return rows

        return fetched

    for name in ("fetchone", "fetchmany", "fetchall"):
        setattr(cursor, name, noting(getattr(cursor, name), name != "fetchone"))


def note_rows(said: Step, description: Any, rows: Any) -> None:
    if rows and not said.found and description:
        said.values = list(zip([column[0] for column in description], rows[0], strict=False))
    said.found = (said.found or 0) + len(rows)


@contextmanager
def django_views() -> Iterator[None]:
    """Async views are refused; and of two clients at once, neither raises the error of the other's view."""
    from inspect import iscoroutinefunction

    from django.core.handlers.base import BaseHandler
    from django.test.client import Client

    resolve, note, send = BaseHandler.resolve_request, Client.store_exc_info, Client.request

    def resolve_request(handler: Any, request: Any) -> Any:
        match = resolve(handler, request)
        caller = running()
        if caller is not None and iscoroutinefunction(match.func):
            raise refuse(caller, _NO_ASYNC)
        return match

    def request(client: Any, **extra: Any) -> Any:
        client._race_caller = running()
        return send(client, **extra)

    def store_exc_info(client: Any, **kwargs: Any) -> None:
        if getattr(client, "_race_caller", None) is running():
            note(client, **kwargs)

    handlers: Any = BaseHandler
    clients: Any = Client
    handlers.resolve_request = resolve_request
    clients.store_exc_info, clients.request = store_exc_info, request
    try:
        yield
    finally:
        handlers.resolve_request = resolve
        clients.store_exc_info, clients.request = note, send


# Flask, SQLAlchemy ----------------------------------------------------------------------------------------------------


@contextmanager
def flask_views() -> Iterator[None]:
    """Async views are refused."""
    from flask import Flask

    before = Flask.async_to_sync

    def async_to_sync(app: Any, function: Any) -> Any:
        caller = running()
        if caller is not None:
            raise refuse(caller, _NO_ASYNC)
        return before(app, function)

    Flask.async_to_sync = async_to_sync  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Flask.async_to_sync = before  # type: ignore[method-assign]


@contextmanager
def at_sqlalchemy(watch: Watch) -> Iterator[None]:
    """Every engine that is used from now on, by its dialect, which sends all there is to send."""
    from sqlalchemy import Engine, event

    patched: list[Any] = []

    def connected(connection: Any) -> None:
        dialect = connection.dialect
        if dialect not in patched and not dialect.is_async:
            patched.append(dialect)
            _watch_dialect(watch, connection.engine, dialect)

    event.listen(Engine, "engine_connect", connected)
    try:
        yield
    finally:
        event.remove(Engine, "engine_connect", connected)
        for dialect in patched:
            for name in _SENDS:
                vars(dialect).pop(name, None)


_SENDS = ("do_execute", "do_executemany", "do_execute_no_params", "do_commit", "do_rollback")


def _watch_dialect(watch: Watch, engine: Any, dialect: Any) -> None:
    from sqlalchemy import Engine

    own = Engine(engine.pool.recreate(), dialect, engine.url)

    def connect() -> tuple[Any, Callable[[], object]]:
        fairy = own.raw_connection()
        raw = fairy.driver_connection
        if database.kind == "sqlite":
            raw.isolation_level = None  # type: ignore[union-attr]
        elif callable(getattr(raw, "autocommit", None)):
            raw.autocommit(True)  # type: ignore[union-attr]
        else:
            raw.autocommit = True  # type: ignore[union-attr]

        def close() -> None:
            fairy.invalidate()
            own.dispose()

        return raw, close

    url = engine.url
    database = watch.database(dialect.name, str(url.database), url.port, connect)

    def executes(name: str) -> None:
        send = getattr(dialect, name)

        def execute(cursor: Any, sql: str, *rest: Any) -> None:
            raw = cursor.connection
            caller = running()
            if caller is not None and database.kind == "sqlite" and not _file_of(raw):
                raise refuse(caller, _IN_MEMORY)
            _, said = watch.sent(
                database,
                raw,
                sql,
                rest[0] if len(rest) > 1 else None,
                lambda: send(cursor, sql, *rest),
                "with_for_update()",
            )
            if said is not None and statements.is_read(sql):
                _read_all(cursor, rest[-1], said)

        setattr(dialect, name, execute)

    for name in _SENDS[:3]:
        executes(name)

    def ends(name: str, word: str) -> None:
        end = getattr(dialect, name)
        setattr(dialect, name, lambda raw: watch.ended(database, _driver(raw), word, lambda: end(raw)))

    ends("do_commit", "COMMIT")
    ends("do_rollback", "ROLLBACK")


def _driver(connection: Any) -> Any:
    """The driver's connection, of the pool's."""
    return getattr(connection, "driver_connection", connection)


def _file_of(raw: Any) -> str:
    return str(raw.execute("PRAGMA database_list").fetchone()[2])


def _read_all(cursor: Any, context: Any, said: Step) -> None:
    """The rows are read now, to note the first; the result gives them out from memory."""
    said.found = 0
    if cursor.description is None or getattr(context, "_is_server_side", False):
        return
    from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy

    rows = cursor.fetchall()
    note_rows(said, cursor.description, rows)
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(cursor, cursor.description, rows)
