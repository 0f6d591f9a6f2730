"""Callers stop at what they send to SQLAlchemy's engines, with Flask or without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from . import statements
from .scheduler import Step, running
from .stops import IN_MEMORY, NO_ASYNC, Watch, note_rows, refuse


@contextmanager
def flask_views() -> Iterator[None]:
    """Async views are refused."""
    from flask import Flask

    before = Flask.async_to_sync

    def async_to_sync(app: Any, function: Any) -> Any:
        caller = running()
        if caller is not None:
            raise refuse(caller, NO_ASYNC)
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
    from sqlalchemy.pool import Pool

    patched: list[Any] = []

    def connected(connection: Any) -> None:
        dialect = connection.dialect
        if dialect not in patched and not dialect.is_async:
            patched.append(dialect)
            _watch_dialect(watch, connection.engine, dialect)

    def given_back(raw: Any, record: Any) -> None:
        watch.given_back(raw)

    event.listen(Engine, "engine_connect", connected)
    event.listen(Pool, "checkin", given_back)
    try:
        yield
    finally:
        event.remove(Pool, "checkin", given_back)
        event.remove(Engine, "engine_connect", connected)
        for dialect in patched:
            for name in _SENDS:
                vars(dialect).pop(name, None)


_TEMPORARY = Path(gettempdir()).resolve()
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
    database = watch.database(dialect.name, str(url.database), url.host or "", url.port, connect, _not_of_tests(url))

    def executes(name: str) -> None:
        send = getattr(dialect, name)

        def execute(cursor: Any, sql: str, *rest: Any) -> None:
            raw = cursor.connection
            caller = running()
            if caller is not None and database.kind == "sqlite" and not _file_of(raw):
                raise refuse(caller, IN_MEMORY)
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


def _not_of_tests(url: Any) -> str:
    """Why it is not taken for a database of tests: nothing but its name tells."""
    name = str(url.database or "")
    file = Path(name).resolve()
    if "test" in file.name.lower() or (url.get_backend_name() == "sqlite" and file.is_relative_to(_TEMPORARY)):
        return ""
    return 'Give the tests a database of their own with "test" in its name, as sqlite:///test.db or postgresql:///shop_test.'


def _driver(connection: Any) -> Any:
    """The driver's connection, of the pool's."""
    return getattr(connection, "driver_connection", connection)


def _file_of(raw: Any) -> str:
    return str(raw.execute("PRAGMA database_list").fetchone()[2])


def _read_all(cursor: Any, context: Any, said: Step) -> None:
    """The rows are read now, to note the first; the result gives them out from memory."""
    if cursor.description is None or getattr(context, "_is_server_side", False):
        return
    if (
        context.isinsert or context.isupdate
    ):  # the SELECT of a default: SQLAlchemy fetches its row from the cursor itself
        return
    from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy

    rows = cursor.fetchall()
    note_rows(said, cursor.description, rows)
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(cursor, cursor.description, rows)
