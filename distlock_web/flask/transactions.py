"""Flask-SQLAlchemy: the session of the running app is the one that ``until="commit"`` means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flask import current_app, has_app_context
from sqlalchemy.orm import Session, scoped_session

from ..core.errors import ConfigurationError
from ..locks.hooks import Context, Integration, TransactionManager
from ..locks.lease import Lease
from ..sqlalchemy.begun import has_changes
from ..sqlalchemy.transactions import SessionTransactions

R = TypeVar("R")


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
    return "the transaction of the app's SQLAlchemy session" if has_changes(scoped()) else None
