"""What the transaction of a session has begun: on which connections, and whether more was done there than read.

The session itself knows it only until its flush, and nothing at all of what goes past its objects: bulk inserts, Core,
text, its ``connection()``. So the statements of its connections are counted. What a function of the database writes
that a SELECT calls, nobody sees.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin

_BEGUN = "distlock_web_begun"

_BEFORE = re.compile(r"\s+|--[^\n]*(?:\n|$)|/\*.*?\*/|\(", re.DOTALL)
_READS = re.compile(
    r"(?:SELECT|WITH|VALUES|TABLE|SHOW|SET|PRAGMA|BEGIN|START|SAVEPOINT|RELEASE|ROLLBACK)\b", re.IGNORECASE
)
_WRITES = re.compile(r"\b(?:INSERT|DELETE|MERGE|INTO|(?<!FOR )(?<!FOR NO KEY )UPDATE)\b", re.IGNORECASE)
_KEEPS = re.compile(r"\bSET\b|\bSET_CONFIG\b|\bUPDATE\b|\bSHARE\b|_XACT_LOCK", re.IGNORECASE)

#: keeps: a setting or a lock of a row, which ends with the transaction, though nothing was changed.
Kind: TypeAlias = Literal["reads", "keeps", "writes"]


def kind_of(statement: str) -> Kind:
    start = 0
    while found := _BEFORE.match(statement, start):
        start = found.end()
    if _READS.match(statement, start) is None or _WRITES.search(statement, start):
        return "writes"
    return "keeps" if _KEEPS.search(statement, start) else "reads"


class Begun:
    """Of one transaction of a session, with the savepoints in it."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.done: set[Kind] = set()


_begun_on: WeakKeyDictionary[Connection, Begun] = WeakKeyDictionary()


def connections_of(session: Session) -> list[Connection]:
    """On which the session's transaction has begun something: one for each of its databases."""
    begun: Begun | None = session.info.get(_BEGUN)
    return [] if begun is None else begun.connections


def has_changes(session: Session) -> bool:
    """Whether a rollback of the session's transaction would undo something."""
    return bool(session.new or session.dirty or session.deleted) or "writes" in _done(session)


def may_be_ended(session: Session) -> bool:
    """Whether its transaction was begun by nothing but a query, in nobody's block, so that nobody misses it."""
    transaction = session.get_transaction()
    began_by_itself = transaction is not None and transaction.origin is SessionTransactionOrigin.AUTOBEGIN
    return (
        began_by_itself
        and not session.in_nested_transaction()
        and not has_changes(session)
        and "keeps" not in _done(session)
    )


def _done(session: Session) -> set[Kind]:
    begun: Begun | None = session.info.get(_BEGUN)
    if begun is None:  # a transaction that is older than this module may have done anything
        return {"writes"} if session.in_transaction() else set()
    return begun.done


def _created(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info[_BEGUN] = Begun()


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_BEGUN, None)


def _began(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    begun: Begun | None = session.info.get(_BEGUN)
    if begun is None or connection in begun.connections:
        return
    begun.connections.append(connection)
    _begun_on[connection] = begun
    if not event.contains(connection.engine, "before_cursor_execute", _executing):
        event.listen(connection.engine, "before_cursor_execute", _executing)


def _executing(connection: Connection, cursor: Any, statement: str, *others: Any) -> None:
    begun = _begun_on.get(connection)
    if begun is not None:
        begun.done.add(kind_of(statement))


# For all sessions of the process: an app's are made anew for each of its contexts.
event.listen(Session, "after_transaction_create", _created)
event.listen(Session, "after_transaction_end", _ended)
event.listen(Session, "after_begin", _began)
