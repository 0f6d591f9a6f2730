"""``once`` with ``until="commit"`` where the locks are in the same database: the record commits with the work."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from typing import Any

import pytest
from django.db import connections, transaction
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, text
from sqlalchemy.orm import Session

import distlock_web.sqlalchemy
from distlock_web import ConfigurationError, LeaseLost, configure, current_lease, once
from distlock_web.locks.call import Call
from tests.support.callers import Beside
from tests.support.databases import Database, django_alias
from tests.support.forking import begin_child, beside_threads, end_of
from tests.support.revoking import revoke
from tests.support.waiting import LONG, PATIENCE, eventually

assert distlock_web.sqlalchemy

#: What a driver calls its requests, and its ends of a transaction: before and after each of them the process may die.
STEPS = frozenset({"execute", "commit", "rollback", "exec_driver_sql"})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, make_database: Callable[..., Database]) -> Database:
    """The locks and the orders are in it."""
    return make_database(request.param)


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = create_engine(database.sqlalchemy)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER)"))
    use_store(database)
    yield engine
    engine.dispose()


def use_store(database: Database, **options: Any) -> None:
    location = database.sqlalchemy.replace("+psycopg", "")
    configure({"default": {"LOCATION": location, "OPTIONS": {"timeout": 5, **options}}})


def by_sqlalchemy(engine: Engine, number: int = 1) -> Any:
    with Session(engine) as session:

        @once(key="order", keep=LONG, expire=LONG, until="commit", database=session, result=True)
        def order() -> int:
            session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
            return number

        return order()


def by_django(engine: Engine, number: int = 1) -> Any:
    @once(key="order", keep=LONG, expire=LONG, until="commit", database="orders", result=True)
    def order() -> int:
        with connections["orders"].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [number])
        return number

    return order()


Order = Callable[..., Any]


@pytest.fixture(params=[by_sqlalchemy, by_django])
def order(
    request: pytest.FixtureRequest, database: Database, engine: Engine, django_db_blocker: Any
) -> Iterator[Order]:
    with django_db_blocker.unblock(), django_alias("orders", database):
        yield request.param


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars())


def records(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM distlock_record")).scalar_one())


def free(engine: Engine) -> None:
    """As if the lease of whoever has died was over."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE distlock_lease SET expires_at = 0 WHERE state <> 'done'"))


def test_the_second_call_gets_the_first_ones_answer(order: Order, engine: Engine) -> None:
    assert [order(engine, 1), order(engine, 2)] == [1, 1]
    assert (orders(engine), records(engine)) == ([1], 1)


def test_what_is_no_success_is_rolled_back(order: Order, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 402 that the view returned was committed, left no record, and the next click wrote its rows again."""
    with monkeypatch.context() as patch:
        patch.setattr(Call, "_succeeded", lambda self, result: result != 1)
        assert [order(engine, 1), order(engine, 1), order(engine, 2)] == [1, 1, 2]
    assert (orders(engine), records(engine)) == ([2], 1)


def test_a_transaction_of_somebody_else_is_refused(database: Database, engine: Engine, django_db_blocker: Any) -> None:
    """It was rolled back, and for a day every retry got the receipt of a payment that did not exist."""
    runs = []
    run = once(key="order", keep=LONG)(lambda: runs.append(1))
    with django_db_blocker.unblock(), django_alias("orders", database):
        with transaction.atomic("orders"), pytest.raises(ConfigurationError, match='until="commit"'):
            run()
        assert runs == []
        run()
    assert runs == [1]


def dies_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a copy of this process, which dies at this step; False: there are not so many."""

    def count(frame: FrameType, event: str, what: Any) -> None:
        nonlocal step
        name = getattr(what, "__name__", "") if event.startswith("c_") else frame.f_code.co_name
        if name in STEPS:
            step -= 1
            if step < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def traced() -> None:
        sys.setprofile(count)
        work()
        sys.setprofile(None)

    status = end_of(begin_child(traced))
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.mark.timeout(400)  # some forty processes, one after the other
@beside_threads
def test_wherever_the_process_dies_there_is_one_effect_and_its_record(
    order: Order, engine: Engine, database: Database
) -> None:
    order(engine)  # the tables are made, and every module is loaded

    def anew() -> None:
        with engine.begin() as connection:
            for table in ("orders", "distlock_lease", "distlock_record", "distlock_waiter"):
                connection.execute(text(f"DELETE FROM {table}"))
        engine.dispose()
        connections["orders"].close()

    def in_child() -> None:
        use_store(database)
        order(engine, 1)

    deaths = with_effect = step = 0
    while True:
        anew()
        died = dies_at(step, in_child)
        eventually(lambda: len(orders(engine)) == records(engine) <= 1, "an effect with its record, or neither")
        free(engine)
        known = orders(engine)
        answers = [order(engine, 2), order(engine, 3)]
        assert answers == (known or [2]) * 2, f"step {step}"
        assert (orders(engine), records(engine)) == (known or [2], 1)
        if not died:
            break
        deaths, with_effect, step = deaths + 1, with_effect + len(known), step + 1
    assert deaths > 20
    assert 0 < with_effect < deaths


def test_a_lease_that_was_lost_rolls_back(order: Order, engine: Engine, database: Database) -> None:
    @once(key="order", keep=LONG, expire=LONG, until="commit", database="orders")
    def lost() -> None:
        with connections["orders"].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (9)")
            lease = current_lease()
            assert lease is not None
            if database.kind == "sqlite":  # where nobody else can write meanwhile
                cursor.execute("UPDATE distlock_lease SET expires_at = 0")
            else:
                revoke(lease.name, lease.fence)

    order(engine, 1)
    free_done(engine)
    with pytest.raises(LeaseLost):
        lost()
    assert (orders(engine), records(engine)) == ([1], 0)


def free_done(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM distlock_record"))
        connection.execute(text("UPDATE distlock_lease SET expires_at = 0"))


def test_what_is_rolled_back_without_an_exception_is_not_done(order: Order, engine: Engine) -> None:
    @once(key="order", keep=LONG, expire=LONG, until="commit", database="orders")
    def undone() -> None:
        with connections["orders"].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (9)")
        transaction.set_rollback(True, using="orders")

    undone()
    assert orders(engine) == []
    assert order(engine, 1) == 1


@pytest.mark.parametrize("keep", [30.0, 600.0])
def test_it_stays_done_for_keep_from_its_beginning(engine: Engine, keep: float) -> None:
    """The record that commits with the work says how long, and under which fence."""
    committed: list[Any] = []
    read = text("SELECT fence, expires_at FROM distlock_record")
    event.listen(engine, "commit", lambda connection: committed.extend(connection.execute(read)), once=True)
    before = time.time()
    with Session(engine) as session:

        @once(key="order", keep=keep, expire=LONG, until="commit", database=session, result=True)
        def order() -> int | None:
            session.execute(text("INSERT INTO orders VALUES (1)"))
            lease = current_lease()
            assert lease is not None
            return lease.fence

        fence = order()
    (record,) = committed
    assert before + keep - 0.01 <= record.expires_at / 1e6 <= time.time() + keep  # SQLite counts milliseconds
    assert record.fence == fence


def test_a_run_that_outlasts_keep_leaves_no_record(engine: Engine) -> None:
    with Session(engine) as session:

        @once(key="order", keep=0.01, expire=LONG, until="commit", database=session)
        def order() -> None:
            session.execute(text("INSERT INTO orders VALUES (1)"))
            time.sleep(0.02)

        order()
    assert (orders(engine), records(engine)) == ([1], 0)


def test_a_commit_that_fails_leaves_no_record(engine: Engine) -> None:
    def fail(connection: object) -> None:
        raise ZeroDivisionError

    event.listen(engine, "commit", fail, once=True)
    with pytest.raises(ZeroDivisionError):
        by_sqlalchemy(engine, 1)
    assert (orders(engine), records(engine)) == ([], 0)
    assert by_sqlalchemy(engine, 2) == 2
    assert (orders(engine), records(engine)) == ([2], 1)


# What is not one transaction -----------------------------------------------------------------------------------------


def with_block(session: Session) -> None:
    session.rollback()
    with session.begin():
        session.execute(text("INSERT INTO orders VALUES (1)"))


@pytest.mark.parametrize(
    "commit",
    [Session.commit, with_block, lambda session: session.get_transaction().commit()],
    ids=["commit", "begin", "transaction"],
)
@pytest.mark.parametrize("locks", ["in the same database", "elsewhere"])
def test_a_function_that_commits_by_itself_is_refused(
    engine: Engine, locks: str, commit: Callable[[Session], object]
) -> None:
    """As in Django. Its work was committed first, the record later: whoever died between the two did it twice."""
    if locks == "elsewhere":
        configure({"default": {"BACKEND": "memory"}})
    with Session(engine) as session:

        @once(key="order", keep=LONG, until="commit", database=session)
        def order() -> None:
            session.execute(text("INSERT INTO orders VALUES (1)"))
            commit(session)

        with pytest.raises(ConfigurationError, match="must not commit by itself"):
            order()
    assert orders(engine) == []


@pytest.mark.filterwarnings("ignore:transaction already deassociated")  # SQLAlchemy's, of the commit that fails
@pytest.mark.parametrize(
    ("work", "exact"),
    [
        (["orders"], True),
        ([], True),
        (["bills"], False),
        (["orders", "bills"], False),
        (["bills", "orders"], False),
    ],
    ids=str,
)
def test_a_session_of_several_databases_is_exact_where_it_used_that_of_the_locks_alone(
    engine: Engine, make_database: Callable[..., Database], work: list[str], exact: bool
) -> None:
    """The record was committed in the first, and the commit of the work, in the second, failed: done, it said."""
    other = create_engine(make_database("sqlite").sqlalchemy)
    orders_table, bills_table = (
        Table(name, MetaData(), Column("number", Integer, primary_key=True)) for name in ("orders", "bills")
    )
    bills_table.create(other)
    asked: list[str] = []

    def note(connection: object, cursor: object, statement: str, *others: object) -> None:
        asked.append(statement)

    def fail(connection: object) -> None:
        raise ZeroDivisionError

    for each in (engine, other):
        event.listen(each, "before_cursor_execute", note)
    with Session(bind=engine, binds={bills_table: other}) as session:

        @once(key="order", keep=LONG, expire=LONG, until="commit", database=session, result=True)
        def order() -> int:
            for name in work:
                session.execute({"orders": orders_table, "bills": bills_table}[name].insert().values(number=1))
            return len(asked)

        failing = other if "bills" in work else engine
        event.listen(failing, "commit", fail, once=True)
        with pytest.raises(ZeroDivisionError):
            order()
        assert any("INSERT INTO distlock_record" in statement for statement in asked) is exact
        assert records(engine) == 0
        for each, name in ((engine, "orders"), (other, "bills")):
            with each.begin() as connection:  # of two commits the other may have been done
                connection.execute(text(f"DELETE FROM {name}"))
        first = order()
        assert [order(), records(engine)] == [first, 1]
    other.dispose()


# In Django -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("locks", ["in the same database", "elsewhere"])
def test_in_the_hooks_of_the_commit_the_lease_is_held(
    database: Database, engine: Engine, locks: str, django_db_blocker: Any
) -> None:
    """It counted as lost there, and what asked for it raised ``LeaseLost`` behind the commit."""
    if locks == "elsewhere":
        configure({"default": {"BACKEND": "memory"}})
    seen: list[object] = []

    def hook() -> None:
        lease = current_lease()
        assert lease is not None
        lease.raise_if_lost()
        seen.extend((lease.state, bool(lease.lost), lease.remaining > 0))

    with django_db_blocker.unblock(), django_alias("orders", database):

        @once(key="order", keep=LONG, expire=LONG, until="commit", database="orders")
        def order() -> None:
            transaction.on_commit(hook, using="orders")

        order()
        order()
    assert seen == ["held", False, True]


@pytest.mark.parametrize("fails", [False, True], ids=["", "and the hook fails"])
def test_a_second_click_while_the_hooks_run_takes_nothing_from_the_first(
    database: Database, engine: Engine, fails: bool, beside: Beside, django_db_blocker: Any
) -> None:
    """It finds the record, and ends the lease: the first one, committed and done, was told that its lock is lost."""
    losses: list[object] = []
    answers: list[int] = []

    def second_click() -> int:
        try:
            return order()
        finally:
            connections.close_all()

    def hook() -> None:
        answers.append(beside(second_click).result(PATIENCE))
        lease = current_lease()
        assert lease is not None
        lease.extend()  # as a renewal does it
        lease.raise_if_lost()
        if fails:
            raise ZeroDivisionError

    with django_db_blocker.unblock(), django_alias("orders", database):

        @once(
            key="order", keep=LONG, expire=LONG, until="commit", database="orders", result=True, on_lost=losses.append
        )
        def order() -> int:
            with connections["orders"].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES (1)")
            transaction.on_commit(hook, using="orders")
            return 1

        if fails:
            with pytest.raises(ZeroDivisionError) as raised:
                order()
            assert not getattr(raised.value, "__notes__", [])
        else:
            assert order() == 1
    assert (answers, losses) == ([1], [])
    assert (orders(engine), records(engine)) == ([1], 1)


def test_on_sqlite_it_can_write_from_its_beginning(
    make_database: Callable[..., Database], django_db_blocker: Any
) -> None:
    """Its first write was refused at once, for somebody who waits had written since it had read."""
    database = make_database("sqlite")
    use_store(database)
    with django_db_blocker.unblock(), django_alias("orders", database):
        connections["orders"].transaction_mode = None  # type: ignore[attr-defined]

        @once(key="order", keep=LONG, expire=LONG, until="commit", database="orders")
        def order() -> None:
            locked = pytest.raises(sqlite3.OperationalError, match="locked")
            with closing(sqlite3.connect(database.name, timeout=0)) as another, locked:
                another.execute("BEGIN IMMEDIATE")

        order()
