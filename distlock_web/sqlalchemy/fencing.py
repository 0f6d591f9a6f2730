"""Rows that a late holder cannot overwrite: each carries the fence of the last holder that worked on it.

``guarded_get`` stamps a row with the fence before it reads it. From then on every flush of the object is one UPDATE
that asks for exactly this stamp: SQLAlchemy's own versioning (``version_id_col``) does it, the fence is the version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import BigInteger, CursorResult, inspect, update
from sqlalchemy.orm import Mapped, Session, declared_attr, mapped_column
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.sql.elements import ColumnElement

from ..core.errors import StaleFence
from ..core.fencing import fence_of
from ..core.lease import Lease

M = TypeVar("M", bound="Fenced")


class Fenced:
    """Declarative mixin: adds the column ``fence`` and makes every UPDATE and DELETE of the object ask for it."""

    fence: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0", nullable=False)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.fence, "version_id_generator": False}


def guarded_get(session: Session, entity: type[M], ident: Any, lease: Lease | int) -> M | None:
    """The object with this primary key, stamped with the fence and then read; None if there is none.

    ``lease`` is the lease, or the number of a fence from elsewhere. Raises ``StaleFence`` if a newer holder has stamped
    the row. Both statements belong to the session's transaction.
    """
    fence = fence_of(lease)
    columns = inspect(entity).primary_key
    values = ident if isinstance(ident, tuple) else (ident,)
    match = [column == value for column, value in zip(columns, values, strict=True)]
    _execute(session, entity, [*match, entity.fence <= fence], {"fence": fence})
    found = session.get(entity, ident, populate_existing=True)
    if found is not None and found.fence != fence:
        raise StaleFence(
            f"{entity.__name__} {ident!r}: a newer holder than the one with the fence {fence} works on it."
        )
    return found


def guarded_update(
    session: Session, entity: type[Fenced], lease: Lease | int, *where: ColumnElement[bool], **values: Any
) -> int:
    """Update the rows that match and bear exactly this fence, in one statement; how many that were.

    Raises ``StaleFence`` if that is none, for then a newer holder has them (or ``guarded_get`` was left out).
    """
    fence = fence_of(lease)
    updated = _execute(session, entity, [*where, entity.fence == fence], values)
    if not updated:
        raise StaleFence(f"No row of {entity.__name__} bears the fence {fence}: a newer holder has written.")
    return updated


def guarded_flush(session: Session) -> None:
    """``session.flush()``; raises ``StaleFence`` where a newer holder has stamped a row that is to be written."""
    with refusing_stale():
        session.flush()


@contextmanager
def refusing_stale() -> Iterator[None]:
    try:
        yield
    except StaleDataError as error:
        raise StaleFence(f"A newer holder has stamped a row since it was read here. ({error})") from error


def _execute(session: Session, entity: type[Fenced], where: list[ColumnElement[bool]], values: dict[str, Any]) -> int:
    statement = update(entity).where(*where).values(**values).execution_options(synchronize_session=False)
    result = session.execute(statement)
    assert isinstance(result, CursorResult)  # noqa: S101 - an UPDATE has one
    return result.rowcount
