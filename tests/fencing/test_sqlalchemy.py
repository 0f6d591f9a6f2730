"""Fenced rows through SQLAlchemy, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, create_engine, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from distlock_web import ConfigurationError, Lease, StaleFence, configure, current_lease, distributed_lockable, lock
from distlock_web.sqlalchemy import Fenced, fenced_flush, fenced_get, fenced_update
from distlock_web.sqlalchemy.stamps import stamps_of
from tests.support.databases import Database


class Base(DeclarativeBase):
    pass


class Stock(Fenced, Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20), default="")
    count: Mapped[int] = mapped_column(default=0)


class Asset(Fenced, Base):
    """Joined inheritance: its fence is in the parent's table."""

    __tablename__ = "asset"
    id: Mapped[int] = mapped_column(primary_key=True)
    count: Mapped[int] = mapped_column(default=0)


class Book(Asset):
    __tablename__ = "book"
    id: Mapped[int] = mapped_column(ForeignKey("asset.id"), primary_key=True)
    pages: Mapped[int] = mapped_column(default=0)


class Pair(Fenced, Base):
    """A primary key of two columns."""

    __tablename__ = "pair"
    left: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    right: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    count: Mapped[int] = mapped_column(default=0)


class Page(Base):
    """With a version of its own."""

    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(String(20), default="")
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Sealed(Fenced, Page):
    """Under a parent whose version is asked for in place of its fence."""

    __tablename__ = "sealed"
    id: Mapped[int] = mapped_column(ForeignKey("pages.id"), primary_key=True)


class Hiding(Fenced, Base):
    __tablename__ = "hiding"
    __mapper_args__ = {"eager_defaults": True}  # noqa: RUF012 - SQLAlchemy's own form
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def sessions(database: Database) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(database.sqlalchemy)
    Base.metadata.create_all(engine)
    yield sessionmaker(engine, expire_on_commit=False)  # so that a holder can pause after its commit
    engine.dispose()


@pytest.fixture
def a(sessions: sessionmaker[Session]) -> Iterator[Session]:
    with sessions() as session:
        yield session


@pytest.fixture
def b(sessions: sessionmaker[Session]) -> Iterator[Session]:
    with sessions() as session:
        yield session


@pytest.fixture(autouse=True)
def rows(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add_all([Stock(id=1, name="bicycle", count=10), Book(id=1, pages=474), Pair(left=1, right=2)])


@pytest.fixture
def look(sessions: sessionmaker[Session]) -> Callable[..., Any]:
    """The row as somebody else sees it."""

    def look(entity: type[Any] = Stock, ident: Any = 1) -> Any:
        with sessions() as session:
            return session.get(entity, ident)

    return look


def come_after(session: Session, entity: type[Any] = Stock) -> None:
    """A newer holder does, in this session."""
    fenced_get(session, entity, 1, 7)
    session.commit()


def refused(session: Session) -> None:
    """What the session has to write is too late."""
    with pytest.raises(StaleFence):
        fenced_flush(session)
    session.rollback()


@contextmanager
def statements(session: Session) -> Iterator[list[str]]:
    seen: list[str] = []
    engine = session.get_bind()

    def record(*args: Any) -> None:
        seen.append(args[2])

    event.listen(engine, "before_cursor_execute", record)
    yield seen
    event.remove(engine, "before_cursor_execute", record)


def test_a_read_stamps_the_row_first(a: Session, look: Callable[..., Any]) -> None:
    with statements(a) as seen:
        found = fenced_get(a, Stock, 1, 5)
    assert [words.split()[0] for words in seen] == ["UPDATE", "SELECT"]
    assert found is not None
    assert (found.fence, found.count) == (5, 10)
    a.commit()
    assert look().fence == 5
    assert fenced_get(a, Stock, 0, 5) is None


def test_a_write_is_one_update_that_asks_for_the_fence(a: Session, look: Callable[..., Any]) -> None:
    found = fenced_get(a, Stock, 1, 5)
    found.count -= 1
    with statements(a) as seen:
        fenced_flush(a)
    assert len(seen) == 1
    assert "stock.fence = " in seen[0].partition("WHERE")[2]
    a.commit()
    assert look().count == 9


def test_the_hard_interleaving(a: Session, b: Session, look: Callable[..., Any]) -> None:
    """A reads and pauses, B reads, A writes, B writes: A is refused, nothing of B's is lost."""
    ours = fenced_get(a, Stock, 1, 5)
    a.commit()
    theirs = fenced_get(b, Stock, 1, 7)
    b.commit()
    ours.count -= 1
    refused(a)
    theirs.count -= 2
    fenced_flush(b)
    b.commit()
    assert (look().count, look().fence) == (8, 7)


def test_a_session_that_is_behind_reads_again(a: Session, b: Session, look: Callable[..., Any]) -> None:
    """What the session has of an older read is not what fenced_get gives."""
    old = a.get(Stock, 1)
    a.commit()
    fenced_get(b, Stock, 1, 5).count = 3
    b.commit()
    assert fenced_get(a, Stock, 1, 7) is old
    assert old.count == 3


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
def test_a_read_is_as_new_as_its_stamp(a: Session, b: Session) -> None:
    """Under a fence that was handed on the stamp changes nothing; InnoDB would then read from an older snapshot."""
    fenced_get(a, Stock, 1, 5)
    a.commit()
    a.execute(text("SELECT count(*) FROM stock"))  # here the snapshot is taken: REPEATABLE READ is MariaDB's default
    fenced_get(b, Stock, 1, 5).count = 3
    b.commit()
    assert fenced_get(a, Stock, 1, 5).count == 3


def test_changes_of_its_own_are_not_read_over(a: Session) -> None:
    found = fenced_get(a, Stock, 1, 5)
    found.count = 4
    assert fenced_get(a, Stock, 1, 5).count == 4
    found.count = 3
    assert fenced_get(a, Stock, 1, 7).count == 3


def test_the_same_values_again_are_not_late(a: Session) -> None:
    fenced_get(a, Stock, 1, 5)
    a.commit()
    for _ in range(2):
        assert fenced_update(a, Stock, 5, Stock.id == 1, count=10) == 1
        assert fenced_get(a, Stock, 1, 5).count == 10


@pytest.mark.parametrize("fence", [4, 6])
def test_an_update_asks_for_exactly_its_fence(a: Session, look: Callable[..., Any], fence: int) -> None:
    fenced_get(a, Stock, 1, 5)
    with statements(a) as seen:
        assert fenced_update(a, Stock, 5, Stock.name == "bicycle", count=Stock.count - 1) == 1
    assert len(seen) == 1
    with pytest.raises(StaleFence, match=f"No matching row of Stock has the fence {fence}"):
        fenced_update(a, Stock, fence, Stock.id == 1, count=0)
    a.commit()
    assert look().count == 9


def test_a_delete_asks_for_it_too(a: Session, b: Session, look: Callable[..., Any]) -> None:
    a.delete(fenced_get(a, Stock, 1, 5))
    a.flush()
    a.rollback()
    found = fenced_get(a, Stock, 1, 5)
    a.commit()
    come_after(b)
    a.delete(found)
    refused(a)
    assert look() is not None


# After the read ------------------------------------------------------------------------------------------------------


#: What a session may do after its commit, so that it has the row anew.
READ_ANEW = pytest.mark.parametrize(
    "read_anew",
    [
        pytest.param(lambda session: None, id="commit"),
        pytest.param(Session.rollback, id="rollback"),
        pytest.param(lambda session: session.refresh(session.get_one(Stock, 1)), id="refresh"),
        pytest.param(lambda session: session.expire(session.get_one(Stock, 1)), id="expire"),
        pytest.param(Session.expire_all, id="expire all"),
        pytest.param(
            lambda session: session.scalars(select(Stock).execution_options(populate_existing=True)).all(), id="query"
        ),
    ],
)


@READ_ANEW
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("expire_on_commit", [True, False])
def test_a_late_holder_that_has_the_row_anew_is_late_still(
    sessions: sessionmaker[Session],
    b: Session,
    look: Callable[..., Any],
    read_anew: Callable[[Session], object],
    deleted: bool,
    expire_on_commit: bool,
) -> None:
    """The object had the newer holder's fence then, and the flush of the older one passed."""
    with sessions(expire_on_commit=expire_on_commit) as a:
        ours = fenced_get(a, Stock, 1, 5)
        assert ours is not None
        a.commit()
        come_after(b)
        a.commit()
        read_anew(a)
        if deleted:
            a.delete(ours)
        else:
            ours.count -= 1
        refused(a)
    assert (look().count, look().fence) == (10, 7)


@READ_ANEW
def test_who_is_not_late_goes_on_with_the_row(
    sessions: sessionmaker[Session], look: Callable[..., Any], read_anew: Callable[[Session], object]
) -> None:
    with sessions(expire_on_commit=True) as a:
        ours = fenced_get(a, Stock, 1, 5)
        assert ours is not None
        for _ in range(2):
            a.commit()
            read_anew(a)
            ours.count -= 1
            fenced_flush(a)
        a.commit()
        fenced_get(a, Stock, 1, 7)
        ours.count -= 1
        a.commit()
    assert (look().count, look().fence) == (7, 7)


def test_a_row_whose_object_nobody_kept(a: Session, b: Session, look: Callable[..., Any]) -> None:
    fenced_get(a, Stock, 1, 5)
    a.commit()
    gc.collect()
    come_after(b)
    a.get_one(Stock, 1).count = 0
    refused(a)
    assert look().count == 10


def test_a_session_that_only_commits_forgets_the_rows_that_nobody_kept(
    sessions: sessionmaker[Session], a: Session, b: Session
) -> None:
    """A worker with one session for its whole life kept a stamp of every row that it ever fenced."""
    with sessions.begin() as session:
        session.add_all(Stock(id=ident, count=10) for ident in range(2, 30))
    kept = fenced_get(a, Stock, 1, 5)
    assert kept is not None
    for ident in range(2, 30):
        fenced_get(a, Stock, ident, 5)
        a.commit()
        gc.collect()
    assert len(stamps_of(a)) <= 2
    come_after(b)
    kept.count = 0
    with pytest.raises(StaleFence):
        fenced_flush(a)


def test_what_was_refused_to_be_read_is_not_written(a: Session, b: Session, look: Callable[..., Any]) -> None:
    come_after(b)
    row = a.get_one(Stock, 1)
    with pytest.raises(StaleFence):
        fenced_get(a, Stock, 1, 5)
    row.count = 0
    refused(a)
    assert look().count == 10


def test_a_stamp_that_was_rolled_back_is_none(a: Session, look: Callable[..., Any]) -> None:
    """The row bears it no more, so a newer holder might have come and gone unseen."""
    ours = fenced_get(a, Stock, 1, 5)
    a.rollback()
    ours.count = 0
    with pytest.raises(StaleFence, match="or its stamp was rolled back"):
        fenced_flush(a)
    a.rollback()
    fenced_get(a, Stock, 1, 5).count = 9
    a.commit()
    assert look().count == 9


def test_a_new_row_under_an_old_key(a: Session, b: Session, look: Callable[..., Any]) -> None:
    a.delete(fenced_get(a, Stock, 1, 5))
    a.commit()
    new = Stock(id=1, count=1)
    a.add(new)
    a.commit()
    new.count = 2
    a.commit()
    assert look().count == 2


def test_a_row_replaced_in_one_flush(a: Session, b: Session, look: Callable[..., Any]) -> None:
    ours = fenced_get(a, Stock, 1, 5)
    a.commit()
    come_after(b)
    a.refresh(ours)
    a.delete(ours)
    a.add(Stock(id=1, count=1))
    refused(a)
    assert look().count == 10


# Other mappings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [["pages"], ["count"], ["pages", "count"]])
def test_joined_inheritance(a: Session, b: Session, look: Callable[..., Any], fields: list[str]) -> None:
    found = fenced_get(a, Book, 1, 5)
    for field in fields:
        setattr(found, field, 1)
    fenced_flush(a)
    a.commit()
    come_after(b, Book)
    for field in fields:
        setattr(found, field, 2)
    refused(a)
    row = look(Book)
    assert {field: getattr(row, field) for field in fields} == dict.fromkeys(fields, 1)
    with pytest.raises(ConfigurationError, match="the fence is in the table 'asset'"):
        fenced_update(a, Book, 7, pages=3)


def test_joined_inheritance_read_anew(a: Session, b: Session, look: Callable[..., Any]) -> None:
    found = fenced_get(a, Book, 1, 5)
    a.commit()
    come_after(b, Book)
    a.refresh(found)
    found.pages = 1
    refused(a)
    assert look(Book).pages == 474


def test_a_key_of_two_columns(a: Session, look: Callable[..., Any]) -> None:
    fenced_get(a, Pair, (1, 2), 5).count = 3
    a.commit()
    assert (look(Pair, (1, 2)).count, look(Pair, (1, 2)).fence) == (3, 5)
    with pytest.raises(ValueError, match="argument"):
        fenced_get(a, Pair, 1, 5)


def test_a_class_that_would_write_unfenced_is_refused(a: Session) -> None:
    with pytest.raises(ConfigurationError, match="Hiding has __mapper_args__ that hide those of Fenced"):
        fenced_get(a, Hiding, 1, 5)
    with pytest.raises(ConfigurationError, match="__mapper_args__"):
        fenced_update(a, Hiding, 5)


# Leases --------------------------------------------------------------------------------------------------------------


def test_under_until_commit_a_late_flush_is_a_stale_fence(
    sessions: sessionmaker[Session], b: Session, look: Callable[..., Any]
) -> None:
    configure({"default": {"BACKEND": "memory"}})
    session = scoped_session(sessions)

    @distributed_lockable(key="stock", until="commit", database=session)
    def sell(newer: bool) -> None:
        lease = current_lease()
        assert lease is not None
        assert lease.fence is not None
        found = fenced_get(session, Stock, 1, lease)
        if newer:
            session.commit()
            fenced_get(b, Stock, 1, lease.fence + 1)
            b.commit()
        found.count -= 1

    sell(newer=False)
    assert look().count == 9
    with pytest.raises(StaleFence, match="A newer holder has stamped a row since it was read here"):
        sell(newer=True)
    session.remove()
    assert look().count == 9


@pytest.mark.parametrize("fenced", [False, True], ids=["alone", "beside a row with a fence"])
@pytest.mark.parametrize("change", [lambda page: setattr(page, "words", "ours"), None], ids=["update", "delete"])
def test_a_version_of_the_projects_own_is_no_fence(
    a: Session, fenced: bool, change: Callable[[Page], None] | None
) -> None:
    """It was told as a newer holder's stamp, of a row that never had one."""
    configure({"default": {"BACKEND": "memory"}})
    a.add(Page(id=1))
    a.commit()

    @distributed_lockable(key="stock", until="commit", database=a)
    def edit() -> None:
        lease = current_lease()
        assert lease is not None
        if fenced:
            found = fenced_get(a, Stock, 1, lease)
            assert found is not None
            found.count -= 1
            fenced_flush(a)
        page = a.get_one(Page, 1)
        a.execute(text("UPDATE pages SET version = 7"))  # as somebody else does
        change(page) if change else a.delete(page)

    with pytest.raises(StaleDataError):
        edit()
    page = a.get_one(Page, 1)
    a.execute(text("UPDATE pages SET version = 8"))
    change(page) if change else a.delete(page)
    with pytest.raises(StaleDataError):
        fenced_flush(a)
    a.rollback()


def test_a_transfer_between_two_rows(a: Session, b: Session) -> None:
    configure({"default": {"BACKEND": "memory"}})
    a.add(Stock(id=2, count=10))
    a.commit()
    with lock("wallet:2"):
        pass  # so that the two have different fences

    def transfer(lease: Lease, amount: int) -> None:
        source = fenced_get(a, Stock, 1, lease, key="wallet:1")
        target = fenced_get(a, Stock, 2, lease, key="wallet:2")
        assert source is not None
        assert target is not None
        source.count -= amount
        target.count += amount
        fenced_flush(a)
        a.commit()

    with lock(["wallet:1", "wallet:2"]) as lease:
        transfer(lease, 3)
        fence = lease.fence_for("wallet:2")
        assert fence is not None
        assert [(row.count, row.fence) for row in b.scalars(select(Stock).order_by(Stock.id))] == [
            (7, lease.fence_for("wallet:1")),
            (13, fence),
        ]
        b.rollback()
        assert fenced_update(a, Stock, fence, Stock.id == 2, count=14) == 1
        a.commit()
        fenced_get(b, Stock, 2, fence + 1)
        b.commit()
        with pytest.raises(StaleFence, match="a newer holder"):
            transfer(lease, 3)
        a.rollback()
        with pytest.raises(ConfigurationError, match="does not hold 'disLock:wallet:3'"):
            fenced_get(a, Stock, 1, lease, key="wallet:3")
    b.expire_all()
    assert list(b.scalars(select(Stock.count).order_by(Stock.id))) == [7, 14]
