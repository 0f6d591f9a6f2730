"""Rows that a late holder cannot overwrite: each carries the fence of the last holder that worked on it.

``fenced_get`` stamps a row with the fence before it reads it. From then on every UPDATE and DELETE of the object asks
for exactly this stamp: SQLAlchemy's own versioning (``version_id_col``) does it, the fence is the version. The stamp is
the session's, not the object's: what a refresh reads from the row may be a newer holder's (``stamps.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CursorResult,
    Table,
    event,
    inspect,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Mapper, Session, declared_attr, has_inherited_table, mapped_column, scoped_session
from sqlalchemy.orm.exc import StaleDataError

from ..core.errors import ConfigurationError, StaleFence
from ..locks.fencing import fence_of, late, unstamped
from ..locks.lease import Lease
from .stamps import ask_for_stamp, forget_stamp, remember_stamp

M = TypeVar("M", bound="Fenced")
AnySession = Session | scoped_session[Any]


class Fenced:
    """Declarative mixin: adds the column ``fence`` and makes every UPDATE and DELETE of the object ask for it.

    A class with ``__mapper_args__`` of its own merges them: ``return {**super().__mapper_args__, ...}``.
    """

    fence: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0", nullable=False)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        if has_inherited_table(cls):  # type: ignore[arg-type]
            return {}  # it is in the parent's table, and its mapper's business
        return {"version_id_col": cls.fence, "version_id_generator": False}


for _moment, _listener in (
    ("before_insert", forget_stamp),
    ("before_update", ask_for_stamp),
    ("before_delete", ask_for_stamp),
):
    event.listen(Fenced, _moment, _listener, propagate=True)


def fenced_get(session: AnySession, entity: type[M], ident: Any, lease: Lease | int, *, key: object = None) -> M | None:
    """Write the fence into the row with this primary key, then read the row. Returns the object, or None.

    ``lease`` is the lease, or the number of a fence from elsewhere. For a lease over several locks ``key`` names the
    row's lock: ``key="wallet:1"``. Raises ``StaleFence`` if a newer holder has stamped the row. Both statements belong
    to the session's transaction: after a rollback the row has no stamp, so read it again. Keep the object: while the
    session has it, every flush checks this fence, also after a commit or a refresh.
    """
    fence = fence_of(lease, key)
    mapper, table = _mapped(entity)
    values = ident if isinstance(ident, tuple) else (ident,)
    row = [column == value for column, value in zip(mapper.primary_key, values, strict=True)]
    fenced_flush(session)  # changes under an older fence would ask for it in vain after the stamp
    stamp = update(table).where(*row, table.c.fence <= fence).values(fence=fence)
    session.execute(stamp, bind_arguments={"mapper": mapper})
    read = select(entity).where(*row).execution_options(populate_existing=True)
    if session.get_bind(mapper).dialect.name in ("mysql", "mariadb"):
        # An UPDATE to the same fence leaves InnoDB's row as it is; a plain read may then be of an older snapshot.
        read = read.with_for_update()
    found = session.scalars(read).unique().one_or_none()
    if found is not None:
        remember_stamp(found, fence, stamped=found.fence == fence)
        if found.fence != fence:
            raise late(f"{entity.__name__} {ident!r}", fence, found.fence)
    return found


def fenced_update(
    session: AnySession, entity: type[Fenced], lease: Lease | int, *where: ColumnElement[bool], **values: Any
) -> int:
    """Update the matching rows that have exactly this fence, in one UPDATE. Returns their number.

    Raises ``StaleFence`` if there is none: a newer holder has stamped them, or ``fenced_get`` was left out. Objects in
    the session keep their values until they are refreshed.
    """
    fence = fence_of(lease)
    mapper, table = _mapped(entity)
    if mapper.local_table is not table:
        raise ConfigurationError(
            f"{entity.__name__}: the fence is in the table {table.name!r}, so one UPDATE cannot check it. Change "
            f"objects that fenced_get returns."
        )
    statement = update(entity).where(*where, entity.fence == fence).values(**values)
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)  # noqa: S101 - an UPDATE has one
    if not result.rowcount:
        raise unstamped(entity.__name__, fence)
    return result.rowcount


def fenced_flush(session: AnySession) -> None:
    """``session.flush()``. Raises ``StaleFence`` if a newer holder has stamped a row that it writes."""
    with refusing_stale():
        session.flush()


@contextmanager
def refusing_stale() -> Iterator[None]:
    """A flush that finds another fence than the object's says so in our words. A project's own versions are its own."""
    try:
        yield
    except StaleDataError as error:
        if not any(f"'{table}'" in str(error) for table in _fenced_tables(Fenced)):
            raise
        raise StaleFence(
            f"A newer holder has stamped a row since it was read here with fenced_get, or its stamp was rolled back. "
            f"({error})"
        ) from error


def _fenced_tables(entity: type[Fenced]) -> Iterator[str]:
    """Those whose rows are asked for their fence. A parent's own version is none."""
    mapper = inspect(entity, raiseerr=False)
    column = None if mapper is None else mapper.version_id_col
    if column is not None and column.name == "fence":
        yield column.table.description
    for each in entity.__subclasses__():
        yield from _fenced_tables(each)


def _mapped(entity: type[Fenced]) -> tuple[Mapper[Any], Table]:
    """The class's mapper, and the table that has its fence: a parent's, under joined inheritance."""
    mapper = inspect(entity)
    column = mapper.version_id_col
    if column is None or column.name != "fence":
        raise ConfigurationError(
            f"{entity.__name__} has __mapper_args__ that hide those of Fenced, so that nothing would ask for the fence "
            f"when it is written: return {{**super().__mapper_args__, ...}} from them."
        )
    return mapper, column.table
