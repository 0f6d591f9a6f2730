"""Under which fence each session has read its fenced rows.

The ``fence`` that an object has in memory is no proof of that: a commit, a rollback or a refresh makes it the row's,
which may be a newer holder's by then. So a flush asks for the fence that is remembered here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy.orm import Mapper, Session, object_session
from sqlalchemy.orm.attributes import set_committed_value

_INFO = "distlock_web_stamps"


def remember_stamp(found: object, fence: int, *, stamped: bool) -> None:
    """This row was read under this fence. ``stamped`` False: in vain, a newer holder's is on it, so no write may pass.

    Remembered by the row's identity, not by the object: an object that nobody keeps is read anew by a plain query.
    """
    session = object_session(found)
    if session is None:  # expunged by an event of somebody else's: then no flush of the session writes it
        return
    stamps, key = _stamps(session), inspect(found).key
    stamps[key] = fence if stamped else stamps.get(key, fence)


def ask_for_stamp(mapper: Mapper[Any], connection: Connection, target: object) -> None:
    """Before an UPDATE or a DELETE: it asks for what the object has as the fence in the database."""
    session = object_session(target)
    fence = None if session is None else _stamps(session).get(inspect(target).key)
    if fence is not None:
        set_committed_value(target, "fence", fence)


def forget_stamp(mapper: Mapper[Any], connection: Connection, target: object) -> None:
    """Before an INSERT: a new row under an old key was read by nobody."""
    session = object_session(target)
    if session is None:
        return
    key = mapper.identity_key_from_instance(target)
    deleted = session.identity_map.get(key)
    if deleted is not None:  # deleted in this very flush, which SQLAlchemy makes one UPDATE of
        ask_for_stamp(mapper, connection, deleted)
    _stamps(session).pop(key, None)


def _stamps(session: Session) -> dict[Any, int]:
    """By identity key. They live as long as the session's objects: ``close`` and ``expunge_all`` end both."""
    kept = session.info.get(_INFO)
    if kept is None or kept[0] is not session.identity_map:
        kept = session.info[_INFO] = (session.identity_map, {})
    stamps: dict[Any, int] = kept[1]
    return stamps
