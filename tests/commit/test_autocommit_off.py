"""Django without autocommit: each statement begins a transaction that no ``atomic()`` has opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from distlock_web import ConfigurationError, distributed_lockable, lock, once
from distlock_web.core.errors import OpenTransactionWarning
from tests.support.databases import Database, django_alias

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture(params=["sqlite", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("postgres", "mariadb"))])
def kind(
    request: pytest.FixtureRequest, make_database: Callable[..., Database], django_db_blocker: Any
) -> Iterator[str]:
    with django_db_blocker.unblock(), django_alias("manual", make_database(request.param)):
        execute("CREATE TABLE written (number INTEGER)")
        transaction.set_autocommit(False, using="manual")
        yield request.param
        transaction.rollback(using="manual")
        transaction.set_autocommit(True, using="manual")


def execute(statement: str) -> list[Any]:
    with connections["manual"].cursor() as cursor:
        cursor.execute(statement)
        return [] if cursor.description is None else list(cursor.fetchall())


def write() -> None:
    execute("INSERT INTO written VALUES (1)")


def write_and_commit() -> None:
    write()
    transaction.commit(using="manual")


def written() -> int:
    [[found]] = execute("SELECT count(*) FROM written")
    transaction.rollback(using="manual")
    return int(found)


def test_a_plain_lock_that_ends_before_the_commit_is_told_of(kind: str) -> None:
    with pytest.warns(OpenTransactionWarning, match="a transaction on the database 'manual'"), lock("order"):
        write()
    transaction.rollback(using="manual")
    if kind != "mariadb":  # whose drivers do not tell whether a transaction has begun
        with lock("order"):
            write_and_commit()


def test_once_is_refused_where_its_work_may_be_undone(kind: str) -> None:
    """A rollback undid the work, and the record stayed: done, it said, and it never was."""
    run = once(key="order", keep=60, result=True)(lambda: write() or "done")
    with pytest.raises(ConfigurationError, match="inside a transaction on the database 'manual'"):
        run()
    transaction.rollback(using="manual")
    assert written() == 0
    if kind != "mariadb":
        committed = once(key="order", keep=60, result=True)(lambda: write_and_commit() or "done")
        assert [committed(), committed(), written()] == ["done", "done", 1]


def test_until_commit_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match="needs autocommit on 'manual'"):
        distributed_lockable(key="order", until="commit", database="manual")(write)()
    assert written() == 0


def test_a_connection_that_was_closed_has_begun_nothing(kind: str) -> None:
    write()
    connections["manual"].close()
    with lock("order"):
        pass
