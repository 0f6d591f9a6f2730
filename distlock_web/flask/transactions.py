"""Flask-SQLAlchemy: the session of the running app is the one that ``until="commit"`` means."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from flask import current_app, has_app_context
from sqlalchemy import TextClause, event
from sqlalchemy.orm import ORMExecuteState, Session, scoped_session

from ..core.errors import ConfigurationError
from ..locks.hooks import Context, Integration, TransactionManager
from ..locks.lease import Lease
from ..sqlalchemy.transactions import SessionTransactions

R = TypeVar("R")

_WRITTEN = "distlock_web_written"
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|MERGE|REPLACE)\b", re.IGNORECASE)


class FlaskSQLAlchemyIntegration(Integration):
    """Installed where SQLAlchemy is."""

    def transactions(self, database: object) -> TransactionManager | None:
        return AppSessionTransactions() if database is None else None

    def open_transaction(self) -> str | None:
        return open_transaction()


class AppSessionTransactions(SessionTransactions):
    """``until="commit"`` without ``database=``: the session of the app's ``SQLAlchemy()`` extension."""

    def context(self) -> Context:
        return "outside" if _app_session() is None else "inside"

    def refuse_open(self, function_name: str, database: Any) -> None:
        super().refuse_open(function_name, _session_for(function_name, database))

    def run(self, function_name: str, call: Callable[[], R], lease: Lease, database: Any) -> R:
        return super().run(function_name, call, lease, _session_for(function_name, database))


def _session_for(function_name: str, database: Any) -> scoped_session[Session]:
    session = database or _app_session()
    if session is None:
        raise ConfigurationError(
            f'{function_name}: until="commit" finds no Flask-SQLAlchemy in the app: give database=session.'
        )
    return session


def _app_session() -> scoped_session[Session] | None:
    extension = current_app.extensions.get("sqlalchemy") if has_app_context() else None
    return getattr(extension, "session", None)


def open_transaction() -> str | None:
    """For the warning about plain locks: a session with changes that are not committed. To have read is harmless."""
    scoped = _app_session()
    if scoped is None or not scoped.registry.has():
        return None
    session = scoped()
    if session.new or session.dirty or session.deleted or session.info.get(_WRITTEN):
        return "the transaction of the app's SQLAlchemy session"
    return None


def _flushed(session: Session, context: Any) -> None:
    session.info[_WRITTEN] = True


def _executed(state: ORMExecuteState) -> None:
    statement = state.statement
    raw = isinstance(statement, TextClause) and _WRITES.match(statement.text)
    if state.is_insert or state.is_update or state.is_delete or raw:
        state.session.info[_WRITTEN] = True


def _over(session: Session) -> None:
    if not session.in_nested_transaction():  # a savepoint's end commits nothing
        session.info.pop(_WRITTEN, None)


# A session forgets after a flush that it has written; the warning needs to know until the commit. For all sessions of
# the process: an app's are made anew for each of its contexts.
event.listen(Session, "after_flush", _flushed)
event.listen(Session, "do_orm_execute", _executed)
event.listen(Session, "after_commit", _over)
event.listen(Session, "after_rollback", _over)
