"""``until="commit"`` over an SQLAlchemy session: lock, function, flush, extend the lease, COMMIT, release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import InstanceState, Session, SessionTransaction, scoped_session

from ..core.backend import StatementResult
from ..core.database_address import DatabaseAddress
from ..core.errors import ConfigurationError
from ..core.integrations import Row
from ..core.request_id import ask_user
from ..locks.commit import before_commit, before_judging, is_once, transaction_begun
from ..locks.hooks import Context, Integration, TransactionManager
from ..locks.lease import Lease
from .begun import connections_of, may_be_ended
from .fencing import refusing_stale

R = TypeVar("R")
_OWNER = "distlock_web_until_commit"  #: in a session's ``info``: the function whose transaction it is in


class SessionTransactions:
    """The transactions of ``until="commit"`` for ``database=session``: a ``Session``, or a ``scoped_session``."""

    def mark(self, wrapper: Callable[..., Any], database: object) -> None:
        """Nothing opens a transaction around the function but the session itself."""

    def context(self) -> Context:
        return "none"

    def refuse_open(self, function_name: str, database: Any) -> None:
        ask_user()  # which may read the database: now, for what the function reads is to be no older than its lock
        _end_reads(function_name, _session(database))

    def run(self, function_name: str, call: Callable[[], R], lease: Lease, database: Any) -> R:
        session = _session(database)
        _end_reads(function_name, session)  # again: to find the key, or who asks, a row may have been read

        def extend(committing: Session) -> None:
            # Every commit, also one of the function's own, has a full lease before it. LeaseLost stops it.
            if not committing.in_nested_transaction():
                committing.flush()  # what is sent now does not use up the lease of the commit
                before_commit(lease, _transactions_of(committing))

        def begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
            transaction_begun(lease, _of(connection))

        flushes = not is_once(lease)  # a `flush` that knew the lease would make a cycle, with the session in it

        def flush(result: object) -> bool:
            # What was added has its key, and what is wrong raises. Not of once: what is no success there is rolled
            # back, right or wrong.
            if flushes:
                session.flush()
            return True

        before_judging(lease, flush)
        event.listen(session, "before_commit", extend)
        event.listen(session, "after_begin", begin)
        try:
            session.info[_OWNER] = function_name
            with refusing_stale():
                result = call()
                _refuse_other(function_name, session, database)
                if session.autobegin or session.in_transaction():  # else the function has begun and committed all of it
                    session.commit()
                return result
        except BaseException:
            session.rollback()
            raise
        finally:
            session.info.pop(_OWNER, None)
            event.remove(session, "before_commit", extend)
            event.remove(session, "after_begin", begin)

    def run_open(self, function: Callable[..., Any], call: Callable[[], R], database: object) -> R:
        return call()


class _SessionTransaction:
    """That of a session, for a store that is in the same database."""

    def __init__(self, engine: Engine, connection: Callable[[], Connection]) -> None:
        self._engine = engine
        self._connection = connection
        self.placeholder: Literal["%s", "?"] = "?" if engine.dialect.paramstyle == "qmark" else "%s"

    @property
    def address(self) -> DatabaseAddress:
        engine = self._engine
        # As its driver is told it: a host, a socket or a service may stand behind the ? of its URL.
        said: Mapping[str, Any] = engine.dialect.create_connect_args(engine.url)[1]
        return DatabaseAddress(
            kind=engine.url.get_backend_name(),
            name=engine.url.database or "",
            host=str(said.get("host") or ""),
            port=said.get("port"),
            connect_args=said,
        )

    def execute(self, statement: str, parameters: Sequence[str | int]) -> StatementResult:
        done = self._connection().exec_driver_sql(statement, tuple(parameters))
        return StatementResult(list(done.all()) if done.returns_rows else [], done.rowcount)


def _transactions_of(session: Session) -> list[_SessionTransaction]:
    """One in each database that the session has used; none, if it has no database."""
    connections = connections_of(session)
    if connections:
        return [_of(connection) for connection in connections]
    try:
        return [
            _SessionTransaction(session.get_bind().engine, session.connection)
        ]  # it begins where something is written
    except UnboundExecutionError:
        return []


def _of(connection: Connection) -> _SessionTransaction:
    return _SessionTransaction(connection.engine, lambda: connection)


def _end_reads(function_name: str, session: Session) -> None:
    """The function is to begin its transaction inside of the lock.

    One that has only read, as to know who is logged in, is ended: its reads may be older than the lock. Its objects are
    read anew where they are used.
    """
    other = session.info.get(_OWNER)
    if other is not None:
        raise ConfigurationError(
            f'{function_name}: until="commit" begins the transaction itself, but it is called inside of {other}, which '
            f'has until="commit" on this session, too: say it in one of the two alone.'
        )
    if not session.in_transaction():
        return
    if not may_be_ended(session):
        raise ConfigurationError(
            f'{function_name}: until="commit" begins the transaction itself, but the session is in one already, '
            f"which cannot be ended here: it has changes, settings (SET, execution options) or locks, its connection "
            f"was in it before the session, or a block began it (session.begin(), a savepoint). End it before the "
            f"call, with session.commit() or session.rollback()."
        )
    session.rollback()


def _refuse_other(function_name: str, session: Session, database: Any) -> None:
    """What the function did on another session of the same name would be lost: only ours is committed."""
    if not isinstance(database, scoped_session) or not database.registry.has():
        return
    other = database.registry()
    if other is session or not other.in_transaction() or may_be_ended(other):
        return
    other.rollback()
    raise ConfigurationError(
        f'{function_name}: until="commit" commits the session that there was before the call, but the function has '
        f"ended with another one, and its changes there were rolled back. Leave out session.remove(), and an app "
        f"context of its own, before the end of the function."
    )


def _session(database: Any) -> Session:
    session: Session = database() if isinstance(database, scoped_session) else database
    return session


class SQLAlchemyIntegration(Integration):
    """``database=session``, and objects as keys."""

    def row_of(self, value: object) -> Row | None:
        """Its table and primary key; None if it is not mapped. Reads nothing, though it may be expired or detached."""
        state = inspect(value, raiseerr=False)
        if not isinstance(state, InstanceState):
            return None
        # The class is that in whose table the key is: of joined inheritance, the first.
        entity, key, *_ = state.identity_key or state.mapper.identity_key_from_instance(state.obj())
        table = inspect(entity).local_table
        return getattr(table, "fullname", f"{entity.__module__}.{entity.__qualname__}"), tuple(key)

    def transactions(self, database: object) -> TransactionManager | None:
        return SessionTransactions() if isinstance(database, Session | scoped_session) else None
