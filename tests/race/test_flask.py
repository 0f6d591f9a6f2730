"""Races of Flask's views with Flask-SQLAlchemy, and of plain engines of SQLAlchemy, on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import (
    JSON,
    Column,
    ColumnDefault,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    QueuePool,
    StaticPool,
    String,
    Table,
    create_engine,
    func,
    make_url,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from distlock_web import distributed_lockable
from distlock_web.flask import DistLock
from distlock_web.testing.race import Race, RaceRefused, step
from distlock_web.testing.race.at_sqlalchemy import _not_of_tests
from tests.support.databases import Database


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "race_stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    left: Mapped[int]
    more: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)


class Sale(Base):
    __tablename__ = "race_sale"
    id: Mapped[int] = mapped_column(primary_key=True)
    buyer: Mapped[str] = mapped_column(String(20), default="somebody")
    stock_id: Mapped[int] = mapped_column(ForeignKey("race_stock.id"))


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = create_engine(database.sqlalchemy)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def shop(engine: Engine, memory_store: None) -> Engine:
    """An item with one left, which the rows of before refer to."""
    with Session(engine) as session:
        session.add(Stock(id=1, left=3, more={"a": 1}))
        session.flush()
        session.add(Sale(stock_id=1))
        session.commit()
    return engine


def one(engine: Engine) -> Callable[[], None]:
    def setup() -> None:
        with Session(engine) as session:
            session.add(Stock(id=7, left=1))
            session.commit()

    return setup


def books(engine: Engine) -> Callable[[], object]:
    def observe() -> object:
        with Session(engine) as session:
            sales = session.scalar(select(func.count()).select_from(Sale).where(Sale.stock_id == 7))
            return {"left": session.get_one(Stock, 7).left, "sales": sales}

    return observe


def buying(engine: Engine, *, for_update: bool = False) -> Callable[[], str]:
    def buy() -> str:
        with Session(engine) as session:
            query = select(Stock).where(Stock.id == 7)
            stock = session.scalars(query.with_for_update() if for_update else query).one()
            if stock.left < 1:
                return "sold out"
            stock.left -= 1
            session.add(Sale(stock_id=7))
            session.commit()
            return "sold"

    return buy


def test_a_race_on_an_engine_and_its_cures(shop: Engine, database: Database, race: Race) -> None:
    setup, observe = one(shop), books(shop)
    found = race(buying(shop), callers=2, setup=setup, observe=observe)
    assert found.answers == ("sold", "sold")
    assert found.observed == {"left": 0, "sales": 2}
    assert "SELECT … FROM race_stock WHERE id = 7" in str(found)
    assert "test_flask.py:" in str(found)
    assert ("with_for_update() at test_flask.py" in str(found)) is (database.kind != "sqlite")
    cures = [distributed_lockable(key="it", wait=5)(buying(shop))]
    if database.kind != "sqlite":
        cures.append(buying(shop, for_update=True))
    for cure in cures:
        race(cure, callers=2, setup=setup, observe=observe, limit=30).assert_as_one_after_the_other()
    with Session(shop) as session:  # as it was before
        assert [(each.id, each.left, each.more) for each in session.scalars(select(Stock))] == [(1, 3, {"a": 1})]
        assert [each.stock_id for each in session.scalars(select(Sale))] == [1]


@pytest.fixture
def app(shop: Engine, database: Database) -> Iterator[Flask]:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = database.sqlalchemy
    app.config["DISTLOCK"] = {"default": {"BACKEND": "memory"}}
    DistLock(app)
    db = SQLAlchemy(app, model_class=Base)

    def sell() -> tuple[str, int]:
        stock = db.session.get_one(Stock, 7)
        if stock.left < 1:
            return "sold out", 409
        stock.left -= 1
        db.session.commit()
        return "sold", 201

    @app.post("/buy")
    def buy() -> tuple[str, int]:
        return sell()

    @app.post("/locked")
    @distributed_lockable(key="it")
    def locked() -> tuple[str, int]:
        return sell()

    @app.post("/commit")
    @distributed_lockable(key="it", until="commit", wait=5)
    def until_commit() -> tuple[str, int]:
        return sell()

    @app.post("/async")
    async def coroutine() -> str:
        return ""

    yield app
    with app.app_context():
        db.engine.dispose()


def test_a_race_of_a_view_and_its_cures(app: Flask, shop: Engine, race: Race) -> None:
    """The clients are those of the fixture ``app``."""
    setup, observe = one(shop), books(shop)
    found = race(lambda client: client.post("/buy"), callers=2, setup=setup, observe=observe)
    assert "(201, 201), left=0" in str(found)
    for url in ("/locked", "/commit"):
        outcome = race(lambda client, url=url: client.post(url), callers=2, setup=setup, observe=observe, limit=30)
        assert not outcome.is_race, outcome


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_function_runs_in_the_apps_context_if_the_test_does(app: Flask, shop: Engine) -> None:
    db = app.extensions["sqlalchemy"]

    def buy() -> None:
        db.session.get_one(Stock, 7).left -= 1
        db.session.commit()

    with app.app_context():
        outcome = Race()(buy, callers=2, setup=one(shop), observe=books(shop))
        by_client = Race()(lambda client: client.post("/buy"), callers=2, setup=one(shop), observe=books(shop))
    assert outcome.is_race
    assert by_client.is_race


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_an_async_view_is_refused(app: Flask, shop: Engine, race: Race) -> None:
    with pytest.raises(RaceRefused, match="async code is not supported"):
        race(lambda client: client.post("/async"), callers=2, setup=one(shop))


@pytest.mark.parametrize("options", [{}, {"poolclass": StaticPool}])
def test_one_connection_for_all_and_memory_are_refused(options: dict[str, Any], memory_store: None, race: Race) -> None:
    engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, **options)
    Base.metadata.create_all(engine)
    with pytest.raises(RaceRefused, match="in memory"):
        race(buying(engine), callers=2)
    engine.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_session_that_is_bound_to_one_connection_is_refused(shop: Engine, race: Race) -> None:
    engine = create_engine(shop.url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    with pytest.raises(RaceRefused, match="have one connection"):
        race(buying(engine), callers=2, setup=one(shop))
    engine.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_connection_that_went_back_to_the_pool_is_the_next_ones(shop: Engine, race: Race) -> None:
    """A has committed and stands at a step; B's read takes the same connection from the pool."""
    pool = create_engine(shop.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=1)

    def buy_and_tell() -> None:
        with Session(pool) as session:
            session.get_one(Stock, 7)
            session.commit()
        step("mail")

    outcome = race(buy_and_tell, callers=2, setup=one(shop), order="ABAB")
    assert not outcome.is_race, outcome
    pool.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_default_that_is_read_first_is_given_to_the_insert(shop: Engine, race: Race) -> None:
    highest = ColumnDefault(select(func.max(Stock.id) + 1).scalar_subquery())
    numbered = Table(
        "race_numbered",
        MetaData(),
        Column("id", Integer, highest, primary_key=True),
        implicit_returning=False,  # as on MySQL: the default is read before the INSERT
    )
    numbered.create(shop)

    def insert() -> None:
        with shop.begin() as connection:
            connection.execute(numbered.insert())

    def observe() -> list[int]:
        with shop.begin() as connection:
            return list(connection.scalars(select(numbered.c.id)))

    outcome = race(insert, lambda: None, setup=one(shop), observe=observe, limit=2)
    assert outcome.observed == [8]


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("postgresql+psycopg://u@h/shop", False),
        ("postgresql+psycopg://u@h/shop_test", True),
        ("sqlite:////srv/shop.db", False),
        ("sqlite:////srv/test-project/shop.db", False),
        ("sqlite:////srv/tests.db", True),
    ],
)
def test_only_a_database_of_tests_is_written_to(url: str, taken: bool) -> None:
    assert (not _not_of_tests(make_url(url))) is taken


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_another_database_than_of_tests_is_refused(shop: Engine, race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlock_web.testing.race.at_sqlalchemy._not_of_tests", lambda url: "It is the site's.")
    with pytest.raises(RaceRefused, match=r"It is the site's\."):
        race(buying(shop), callers=2, setup=one(shop))
