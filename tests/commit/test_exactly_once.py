"""``once`` with ``until="commit"`` where the locks are in the same database: the record commits with the work."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from django.db import connections, transaction
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

import distlock_web.sqlalchemy
from distlock_web import ConfigurationError, LeaseLost, configure, current_lease, once
from distlock_web.locks.once import Once
from tests.support.databases import Database, django_alias
from tests.support.forking import begin_child, beside_threads, end_of
from tests.support.revoking import revoke
from tests.support.waiting import LONG, eventually

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
        found = connection.execute(
            text(
                "SELECT count(*) FROM distlock_lease JOIN distlock_record USING (name_key, fence) "
                "WHERE distlock_lease.state = 'done'"
            )
        )
        return int(found.scalar_one())


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
        patch.setattr(Once, "succeeded", lambda self, result: result != 1)
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


def test_a_commit_that_fails_leaves_no_record(engine: Engine) -> None:
    def fail(connection: object) -> None:
        raise ZeroDivisionError

    event.listen(engine, "commit", fail, once=True)
    with pytest.raises(ZeroDivisionError):
        by_sqlalchemy(engine, 1)
    assert (orders(engine), records(engine)) == ([], 0)
    assert by_sqlalchemy(engine, 2) == 2
    assert (orders(engine), records(engine)) == ([2], 1)
