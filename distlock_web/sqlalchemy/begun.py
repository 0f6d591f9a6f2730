"""What the transaction of a session has begun: on which connections, and whether more was done there than read.

The session itself knows it only until its flush, and nothing at all of what goes past its objects: bulk inserts, Core,
text, its ``connection()``. So the statements of its connections are counted. What is written by a function of
the database that a SELECT calls is not seen.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin

_BEGUN = "distlock_web_begun"

# What is not code: comments, literals, quoted names. Code is what MySQL reads in /*! */. A backslash ends no literal
# in PostgreSQL's, and escapes in MySQL's.
_NO_CODE = r"(?P<comment>--[^\n]*|/\*(?!!).*?\*/)|{literal}|`[^`]*`|(?P<mark>\$\w*\$).*?(?P=mark)"
_STANDARD = re.compile(_NO_CODE.format(literal=r"'[^']*'|\"[^\"]*\""), re.DOTALL)
_ESCAPED = re.compile(_NO_CODE.format(literal=r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""), re.DOTALL)

_EXPLAINS = re.compile(r"(?:EXPLAIN|DESCRIBE|DESC)\b(?P<runs>(?: ?\([^)]*\)| ANALYZE| VERBOSE)*)")
_READS = re.compile(r"(?:SELECT|WITH|VALUES|TABLE|SHOW|SET|PRAGMA|BEGIN|START|SAVEPOINT|RELEASE|ROLLBACK)\b")
# These words may be names, but not at the beginning of what WITH has in brackets, nor behind it.
_WRITES = re.compile(
    r"[()] ?(?:(?:INSERT|MERGE|REPLACE) (?:\w+ )*INTO\b|DELETE (?:[\w.,*]+ )*FROM\b|UPDATE .*\bSET\b)"
    r"|(?<!\.)(?<!\bAS )\bINTO\b"
)
_KEEPS = re.compile(
    r"^SET\b|\bFOR (?:NO KEY )?UPDATE\b|\bFOR (?:KEY )?SHARE\b|\bLOCK IN SHARE MODE\b"
    r"|(?:ADVISORY\w*_LOCK\w*|\bGET_LOCK|\bSET_CONFIG) ?\("
)

#: keeps: a setting or a lock, which ends with the transaction or its connection, though nothing was changed.
Kind: TypeAlias = Literal["reads", "keeps", "writes"]
_KINDS: tuple[Kind, ...] = ("reads", "keeps", "writes")


@lru_cache(maxsize=256)
def kind_of(statement: str) -> Kind:
    readings = (_STANDARD, _ESCAPED) if "\\" in statement else (_STANDARD,)
    codes = {" ".join(each.sub(_without, statement).upper().split()) for each in readings}
    return max((_kind_of_code(part.lstrip("( ")) for code in codes for part in code.split(";")), key=_KINDS.index)


def _without(found: re.Match[str]) -> str:
    return " " if found["comment"] else "_"


def _kind_of_code(code: str) -> Kind:
    if explains := _EXPLAINS.match(code):
        if "ANALYZE" not in explains["runs"]:
            return "reads"
        code = code[explains.end() :].lstrip("( ")
    if not code:
        return "reads"
    if _READS.match(code) is None or _WRITES.search(code):
        return "writes"
    return "keeps" if _KEEPS.search(code) else "reads"


class Begun:
    """Of one transaction of a session, with the savepoints in it."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.done: set[Kind] = set()


#: Several sessions may be on one connection: a rollback of any of them undoes what the others have done there since.
_begun_on: WeakKeyDictionary[Connection, WeakSet[Begun]] = WeakKeyDictionary()


def connections_of(session: Session) -> list[Connection]:
    """On which the session's transaction has begun something: one for each of its databases."""
    begun: Begun | None = session.info.get(_BEGUN)
    return [] if begun is None else begun.connections


def has_changes(session: Session) -> bool:
    """Whether a rollback of the session's transaction would undo something."""
    return bool(session.new or session.dirty or session.deleted) or "writes" in _done(session)


def may_be_ended(session: Session) -> bool:
    """Whether only a query has begun its transaction, outside of every block, so that no code misses it."""
    transaction = session.get_transaction()
    return (
        transaction is not None
        and transaction.origin is SessionTransactionOrigin.AUTOBEGIN
        and not session.in_nested_transaction()
        and not has_changes(session)
        and "keeps" not in _done(session)
        and all(_begins_anew(session, transaction, connection) for connection in connections_of(session))
    )


def _begins_anew(session: Session, transaction: Any, connection: Connection) -> bool:
    """Whether a rollback of the session's ends nothing there but what the session has begun, by itself and as usual."""
    # No public name says whether the session has made the connection, and what of it is its own to end.
    _, _, is_own, is_made_here = transaction._connections[connection]
    if not is_made_here:  # a savepoint of its own is; with control_fully it ends every one
        return is_own and session.join_transaction_mode != "control_fully"
    usual = {**connection.engine.get_execution_options(), **(getattr(session, "execution_options", None) or {})}
    return all(usual.get(name) == value for name, value in connection.get_execution_options().items())


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
    _begun_on.setdefault(connection, WeakSet()).add(begun)
    if not event.contains(connection.engine, "before_cursor_execute", _executing):
        event.listen(connection.engine, "before_cursor_execute", _executing)


def _executing(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
    begun = [each for each in _begun_on.get(connection, ()) if "writes" not in each.done]
    if begun:
        writes = context is not None and (context.isddl or context.isinsert or context.isupdate or context.isdelete)
        kind = "writes" if writes else kind_of(statement)
        for each in begun:
            each.done.add(kind)


# For all sessions of the process: an app's are made anew for each of its contexts.
event.listen(Session, "after_transaction_create", _created)
event.listen(Session, "after_transaction_end", _ended)
event.listen(Session, "after_begin", _began)
