"""Callers stop at what they send to Django's connections; and what else of Django two threads would share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from threading import local
from typing import Any, cast

from . import statements
from .databases import RacedDatabase
from .scheduler import RaceRefused, Step, running
from .stops import IN_MEMORY, NO_ASYNC, Watch, note_rows, refuse


class Django:
    """Django's connections, of the test's thread and of each caller's."""

    def __init__(self, watch: Watch) -> None:
        from django.db import connections

        self._watch = watch
        self._connections = connections
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                raise RaceRefused(
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
                    if connection.connection is not None:  # Django leaves an SQLite in memory open
                        connection.connection.close()
            for each in undo:
                each()

    def _watch_one(self, connection: Any) -> Callable[[], None]:
        watch, settings = self._watch, connection.settings_dict

        @cache
        def database() -> RacedDatabase:
            name, host, port = str(settings["NAME"]), str(settings["HOST"] or ""), settings["PORT"]
            return watch.database(
                connection.vendor, name, host, port, lambda: _own_of_django(connection), _not_of_tests(connection)
            )

        def statement(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
            known, caller = database(), running()
            if caller is not None and connection.vendor == "sqlite" and connection.is_in_memory_db():
                raise refuse(caller, IN_MEMORY)
            result, said = watch.sent(
                known,
                connection.connection,
                sql,
                parameters,
                lambda: execute(sql, parameters, many, context),
                "select_for_update()",
            )
            _listen(context["cursor"], said if said is not None and statements.is_read(sql) else None)
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


def _not_of_tests(connection: Any) -> str:
    """Why it is none that the test runner has made: its name is that of ``TEST``, or begins with ``test_``."""
    from django.db.backends.base.creation import TEST_DATABASE_PREFIX

    name, wanted = (
        str(connection.settings_dict["NAME"]),
        str((connection.settings_dict.get("TEST") or {}).get("NAME") or ""),
    )
    if connection.vendor == "sqlite" and connection.is_in_memory_db():  # refused with words of its own
        return ""
    stem, suffix = re.escape(wanted.removesuffix(Path(wanted).suffix)), re.escape(Path(wanted).suffix)
    runners = name == wanted or re.fullmatch(rf"{stem}_\w+{suffix}", name)  # a clone, of tests side by side: shop_1
    if (wanted and runners) or Path(name).name.startswith(TEST_DATABASE_PREFIX):
        return ""
    return (
        "Django's test runner makes a database of its own, test_…, or DATABASES[…]['TEST']['NAME']: race runs in that."
    )


def _listen(cursor: Any, said: Step | None) -> None:
    """The rows are fetched later: note how many, and the first, at the last statement of the cursor."""
    listens = "_race_step" in vars(cursor)
    if said is None and not listens:
        return
    cursor._race_step = said
    if listens:
        return

    def noting(fetch: Callable[..., Any], many: bool) -> Callable[..., Any]:
        def fetched(*args: Any) -> Any:
            rows = fetch(*args)
            _note(cursor, rows if many else [rows] if rows is not None else [])
            return rows

        return fetched

    for name in ("fetchone", "fetchmany", "fetchall"):
        setattr(cursor, name, noting(getattr(cursor, name), name != "fetchone"))


def _note(cursor: Any, rows: Any) -> None:
    if (said := vars(cursor).get("_race_step")) is not None:
        note_rows(said, cursor.description, rows)


@contextmanager
def _iterations() -> Iterator[None]:
    """``for row in cursor`` is of the class: no cursor can have one of its own."""
    from django.db.backends.utils import CursorWrapper

    iterate = CursorWrapper.__iter__

    def noting(cursor: Any) -> Iterator[Any]:
        _note(cursor, [])  # it is known now that there may be none
        for row in iterate(cursor):
            _note(cursor, [row])
            yield row

    wrappers: Any = CursorWrapper
    wrappers.__iter__ = noting
    try:
        yield
    finally:
        wrappers.__iter__ = iterate


@contextmanager
def django_views() -> Iterator[None]:
    """Async views are refused; and of two clients at once, neither raises the error of the other's view."""

    from django.core.handlers.base import BaseHandler
    from django.test.client import Client

    resolve, note, send = BaseHandler.resolve_request, Client.store_exc_info, Client.request
    here, notes = local(), cast(Any, note)

    def resolve_request(handler: Any, request: Any) -> Any:
        match = resolve(handler, request)
        caller = running()
        if caller is not None and iscoroutinefunction(match.func):
            raise refuse(caller, NO_ASYNC)
        return match

    def request(client: Any, **extra: Any) -> Any:
        before = getattr(here, "client", None)
        here.client = client
        try:
            return send(client, **extra)
        finally:
            here.client = before

    def store_exc_info(client: Any, **kwargs: Any) -> None:
        if getattr(here, "client", None) is client:  # by thread: two callers may share a client
            notes(client, **kwargs)

    handlers: Any = BaseHandler
    clients: Any = Client
    handlers.resolve_request = resolve_request
    clients.store_exc_info, clients.request = store_exc_info, request
    try:
        with _iterations():
            yield
    finally:
        handlers.resolve_request = resolve
        clients.store_exc_info, clients.request = note, send
