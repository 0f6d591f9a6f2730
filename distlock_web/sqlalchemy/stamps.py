"""Under which fence each session has read its fenced rows.

The ``fence`` that an object has in memory is no proof of that: a commit, a rollback or a refresh makes it the row's,
which may be a newer holder's by then. So a flush asks for the fence that is remembered here.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from sqlalchemy import Connection, inspect
from sqlalchemy.orm import Mapper, Session, object_session
from sqlalchemy.orm.attributes import set_committed_value

_INFO = "distlock_web_stamps"


def remember_stamp(found: object, fence: int, *, stamped: bool) -> None:
    """This row was read under this fence. ``stamped`` False: in vain, a newer holder's is on it, so no write may pass.

    Remembered by the row's identity, not by the object: an object without a reference is read anew by a plain query.
    """
    session = object_session(found)
    if session is None:  # expunged by an event of other code: then no flush of the session writes it
        return
    stamps, key = stamps_of(session, fencing=True), inspect(found).key
    stamps[key] = fence if stamped else stamps.get(key, fence)


def ask_for_stamp(mapper: Mapper[Any], connection: Connection, target: object) -> None:
    """Before an UPDATE or a DELETE: it asks for what the object has as the fence in the database."""
    session = object_session(target)
    fence = None if session is None else stamps_of(session).get(inspect(target).key)
    if fence is not None:
        set_committed_value(target, "fence", fence)


def forget_stamp(mapper: Mapper[Any], connection: Connection, target: object) -> None:
    """Before an INSERT: a new row under an old key has not been read."""
    session = object_session(target)
    if session is None:
        return
    key = mapper.identity_key_from_instance(target)
    deleted = session.identity_map.get(key)
    if deleted is not None:  # deleted in this very flush, which SQLAlchemy makes one UPDATE of
        ask_for_stamp(mapper, connection, deleted)
    stamps_of(session).pop(key, None)


def stamps_of(session: Session, fencing: bool = False) -> dict[Any, int]:
    """By identity key. ``close`` and ``expunge_all`` end all of them, as they end the session's objects.

    ``fencing``: a row is fenced now. The first in a transaction ends the stamps of earlier ones whose objects
    are gone: a session that lives as long as its process would keep one for every row that it ever fenced.
    """
    kept = session.info.get(_INFO)
    if kept is None or kept[0] is not session.identity_map:
        kept = session.info[_INFO] = [session.identity_map, {}, None]  # the last: the transaction that fenced last
    stamps: dict[Any, int] = kept[1]
    transaction = session.get_transaction()
    if fencing and (kept[2] is None or kept[2]() is not transaction):
        kept[2] = ref(transaction)
        for key in stamps.keys() - session.identity_map.keys():
            del stamps[key]
    return stamps
