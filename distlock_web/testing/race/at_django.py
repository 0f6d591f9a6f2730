"""Callers stop at what they send to Django's connections; and what else of Django two threads would share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from . import statements
from .databases import Database
from .scheduler import Refused, Step, running
from .stops import IN_MEMORY, NO_ASYNC, Watch, note_rows, refuse


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
            name, host, port = str(settings["NAME"]), str(settings["HOST"] or ""), settings["PORT"]
            return watch.database(connection.vendor, name, host, port, lambda: _own_of_django(connection))

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


@contextmanager
def django_views() -> Iterator[None]:
    """Async views are refused; and of two clients at once, neither raises the error of the other's view."""

    from django.core.handlers.base import BaseHandler
    from django.test.client import Client

    resolve, note, send = BaseHandler.resolve_request, Client.store_exc_info, Client.request

    def resolve_request(handler: Any, request: Any) -> Any:
        match = resolve(handler, request)
        caller = running()
        if caller is not None and iscoroutinefunction(match.func):
            raise refuse(caller, NO_ASYNC)
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
