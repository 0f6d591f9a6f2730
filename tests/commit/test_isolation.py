"""An exact ``once`` at every level of isolation: what others do with its lock meanwhile does not undo its work.

The lock's row changes while the work is done: whoever waits is noted there, and so is each renewal. A transaction that
sees the database as it was at its beginning may neither lock nor change such a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

import distlock_web.sqlalchemy
from distlock_web import BackendUnavailable, LeaseLost, configure, current_lease, lock, once
from distlock_web.backends.sql import SQLBackend
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, now
from tests.support.callers import Beside
from tests.support.databases import Database, Kind
from tests.support.waiting import LONG, PATIENCE, eventually

assert distlock_web.sqlalchemy

RUNS = count()
PATIENT: dict[str, Any] = {"wait": PATIENCE, "expire": LONG}
#: Since MariaDB 11.6 this is on, unless it is turned off.
SNAPSHOT = "SNAPSHOT"
LEVELS: list[tuple[Kind, str]] = [
    ("sqlite", ""),
    ("postgres", "READ COMMITTED"),
    ("postgres", "REPEATABLE READ"),
    ("postgres", "SERIALIZABLE"),
    ("mariadb", "READ COMMITTED"),
    ("mariadb", "REPEATABLE READ"),
    ("mariadb", SNAPSHOT),
    ("mariadb", "SERIALIZABLE"),
]


def levels(*kinds: Kind) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(each, marks=() if each[0] == "sqlite" else slow) for each in LEVELS if each[0] in kinds]


def shops(*kinds: Kind) -> pytest.MarkDecorator:
    """Where it can happen."""
    return pytest.mark.parametrize("shop", levels(*kinds), ids=" ".join, indirect=True)


#: Nobody else can write to the file of an SQLite while one does, the renewal neither: docs/sql.md.
where_several_write = shops("postgres", "mariadb")


class Shop(NamedTuple):
    """A database with orders, and with the locks."""

    engine: Engine
    kind: Kind

    def order(self, key: str, inside: Callable[[], object], **options: Any) -> str:
        """Look, do what is to be done inside, and write."""
        with Session(self.engine) as session:

            @once(key=key, keep=LONG, until="commit", database=session, result=True, **{**PATIENT, **options})
            def order() -> str:
                session.execute(text("SELECT * FROM stock")).all()  # from here on it sees the database as it is now
                inside()
                session.execute(text("INSERT INTO orders VALUES (:key)"), {"key": key})
                return f"{key}, run {next(RUNS)}"

            return order()

    @property
    def orders(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT key_of_it FROM orders ORDER BY 1")).scalars())

    def end_lease(self, key: str) -> None:
        """As if the holder had been stopped for longer than its lease."""
        with self.engine.begin() as connection:
            connection.execute(
                text("UPDATE distlock_lease SET expires_at = 0 WHERE name LIKE :name AND state <> 'done'"),
                {"name": f"%{key}"},
            )


@pytest.fixture(params=levels("sqlite", "postgres", "mariadb"), ids=" ".join)
def shop(request: pytest.FixtureRequest, make_database: Callable[..., Database]) -> Iterator[Shop]:
    kind, level = request.param
    database = make_database(kind)
    known = {} if not level else {"isolation_level": "REPEATABLE READ" if level == SNAPSHOT else level}
    engine = create_engine(database.sqlalchemy, pool_size=10, **known)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (key_of_it VARCHAR(40))"))
        connection.execute(text("CREATE TABLE stock (item VARCHAR(40))"))
        if level == SNAPSHOT and not connection.execute(text("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")).all():
            pytest.skip("this MariaDB has no innodb_snapshot_isolation")
    if level == SNAPSHOT:
        event.listen(engine, "connect", snapshot)
    engine.dispose()
    location = database.sqlalchemy.replace("+psycopg", "").replace("+pymysql", "")
    configure({"default": {"LOCATION": location, "OPTIONS": {"timeout": 5}}})
    lock("the tables are made").acquire().release()
    yield Shop(engine, kind)
    engine.dispose()


def snapshot(connection: Any, record: object) -> None:
    connection.cursor().execute("SET SESSION innodb_snapshot_isolation = ON")


def somebody_waits() -> bool:
    return any(line.waiters for line in drive(registry().store("default").port(THREADS).inspect()))


def test_a_second_click_that_waits_gets_the_receipt(shop: Shop, beside: Beside) -> None:
    """It made the first one fail, whose work was rolled back."""
    inside, go = threading.Event(), threading.Event()

    def first_is_inside() -> None:
        inside.set()
        assert go.wait(PATIENCE)

    first = beside(shop.order, "order", first_is_inside)
    assert inside.wait(PATIENCE)
    second = beside(shop.order, "order", lambda: None)
    if shop.kind == "sqlite":  # whose file is the first one's: the second waits for that, and is in no queue yet
        with suppress(TimeoutError, BackendUnavailable):
            eventually(somebody_waits, "a waiter", patience=0.5)
    else:
        eventually(somebody_waits, "a waiter")
    go.set()
    assert first.result(PATIENCE) == second.result(PATIENCE)
    assert shop.orders == ["order"]


@where_several_write
def test_a_renewal_undoes_nothing(shop: Shop, beside: Beside) -> None:
    def until_it_is_renewed() -> None:
        lease = current_lease()
        assert lease is not None
        end = now() + lease.remaining
        eventually(lambda: now() + lease.remaining > end + 0.1, "a renewal")

    assert beside(shop.order, "order", until_it_is_renewed, expire=6, renew=True).result(PATIENCE).startswith("order")
    assert shop.orders == ["order"]


@where_several_write
def test_others_with_another_key_are_in_nobodys_way(shop: Shop, beside: Beside) -> None:
    """Each looked for its record before it wrote it, which at these levels is a conflict of two that touch nothing
    in common."""
    together = threading.Barrier(4)
    keys = [f"order {number}" for number in range(4)]
    running: list[Future[Any]] = [beside(shop.order, key, lambda: together.wait(PATIENCE)) for key in keys]
    assert [each.result(PATIENCE)[:7] for each in running] == keys
    assert shop.orders == keys


@where_several_write
@pytest.mark.parametrize("moment", ["before the record", "after the record"])
def test_of_two_whose_leases_overlap_one_commits(
    shop: Shop, beside: Beside, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A holder that is stopped just before its COMMIT, for longer than its lease: the next one runs meanwhile."""
    record_within = SQLBackend.record_within
    late: list[Future[Any]] = []

    def stopped(*args: Any) -> Any:
        if late:
            return record_within(*args)
        if moment == "after the record":
            found = record_within(*args)
        inside = threading.Event()
        shop.end_lease("order")
        late.append(beside(shop.order, "order", inside.set))
        if moment == "after the record":  # the second has done its work, and waits for what becomes of this record
            assert inside.wait(PATIENCE)
            return found
        late[0].result(PATIENCE)
        return record_within(*args)

    monkeypatch.setattr(SQLBackend, "record_within", stopped)
    first = beside(shop.order, "order", lambda: None)
    if moment == "before the record":
        with pytest.raises(LeaseLost):
            first.result(PATIENCE)
        done = late[0].result(PATIENCE)
    else:
        done = first.result(PATIENCE)
        with pytest.raises(LeaseLost):
            late[0].result(PATIENCE)
    assert shop.orders == ["order"]
    assert beside(shop.order, "order", lambda: None).result(PATIENCE) == done


@shops("postgres")
def test_who_is_stopped_before_the_commit_hangs_nobody(
    shop: Shop, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run's record waits for what becomes of his: on a PostgreSQL for as long as he was stopped.

    Others have a limit of their own: innodb_lock_wait_timeout, the timeout of a file.
    """
    record_within = SQLBackend.record_within
    inside, go, limits = threading.Event(), threading.Event(), list[str]()

    def stopped(store: SQLBackend, transaction: Any, *args: Any) -> Any:
        found = record_within(store, transaction, *args)
        limits.append(transaction.execute("SHOW lock_timeout", ()).first()[0])
        shop.end_lease("order")
        inside.set()
        assert go.wait(2 * PATIENCE)
        return found

    monkeypatch.setattr(SQLBackend, "record_within", stopped)
    first = beside(shop.order, "order", lambda: None)
    assert inside.wait(PATIENCE)
    try:
        with pytest.raises(OperationalError, match="lock timeout"):
            beside(shop.order, "order", lambda: None).result(PATIENCE)
    finally:
        go.set()
    first.result(PATIENCE)
    assert shop.orders == ["order"]
    assert limits == ["0"]  # as before: what else the transaction waits for is its own


def test_a_record_whose_release_never_came_is_found(shop: Shop, beside: Beside) -> None:
    """The process died behind the COMMIT, or the answer to that was lost. Its lease ends, and its row goes in time."""
    done = beside(shop.order, "order", lambda: None).result(PATIENCE)
    for ends in (
        "UPDATE distlock_lease SET state = 'held', expires_at = 0",  # died
        "UPDATE distlock_lease SET state = '', token = '', expires_at = 0",  # released as a failure
        "DELETE FROM distlock_lease",  # purged
    ):
        with shop.engine.begin() as connection:
            connection.execute(text(ends))
        assert beside(shop.order, "order", lambda: None).result(PATIENCE) == done
        port: Any = registry().store("default").port(THREADS)
        [line] = drive(port.done(10))
        assert (line.name, line.state) == ("disLock:once:order", "done")
    assert shop.orders == ["order"]
    assert drive(port.forget(line.name, line.fence))
    assert beside(shop.order, "order", lambda: None).result(PATIENCE) != done
    assert shop.orders == ["order", "order"]
