"""A signal's exception, anywhere in a transaction, costs its caller that transaction and nobody anything else."""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import StatementError

from distlock_web import DistLockError, configure
from distlock_web.backends import sql
from distlock_web.backends.sql import sqlite_fork
from distlock_web.backends.sql.database import in_transaction
from distlock_web.core.registry import registry
from distlock_web.kit import pool
from tests.support.callers import unrelated
from tests.support.interruptions import HardLimit, Limit, in_a_thread_of_its_own, interrupted_at
from tests.support.waiting import SOON

#: Where connections are lent, used and given back.
OURS = (str(Path(sql.__file__).parent), str(Path(pool.__file__)), f"{Path(sqlalchemy.__file__).parent}/pool")
#: And all that a transaction passes through.
ALL = (*OURS, str(Path(sqlalchemy.__file__).parent))


def database(settings: dict[str, Any]) -> Any:
    """Of one connection, for which nobody waits."""
    backend = configure({"default": {**settings, "OPTIONS": {"max_connections": 1, "pool_timeout": 0}}})
    return backend.store("default").backend._requests  # type: ignore[attr-defined]


def ask(asked: Any) -> None:
    tables = asked.tables
    asked.run(lambda transaction: transaction.run(tables.held).all())


def at_every_moment(
    work: Callable[[], None], check: Callable[[], object], limit: type[BaseException], places: tuple[str, ...] = OURS
) -> int:
    """How many there are."""
    for step in range(100_000):
        interrupted, stayed = False, True

        def block() -> None:
            nonlocal interrupted, stayed
            # What SQLite makes of one that comes in a function that it has called, and SQLAlchemy of some.
            with suppress(limit, DistLockError, StatementError):
                interrupted = True
                interrupted = interrupted_at(step, work, lambda file: file.startswith(places), limit)  # noqa: B023
            stayed = in_transaction()

        in_a_thread_of_its_own(block)
        assert not stayed
        if not interrupted:
            gc.collect()  # here, where nobody is told of connections that are left open
            return step
        check()
    raise AssertionError("it does not end")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("limit", [Limit, HardLimit])
def test_no_connection_is_used_up_wherever_its_user_is_interrupted(
    settings: dict[str, Any], fresh: bool, limit: type[BaseException]
) -> None:
    """Each left the pool with one fewer, for good. ``fresh``: while it is opened."""
    asked = database(settings)

    def check() -> None:
        ask(asked)
        if fresh:
            asked.close()

    check()
    assert at_every_moment(lambda: ask(asked), check, limit) > 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("limit", [Limit, HardLimit])
def test_a_file_is_locked_no_longer_than_its_user_lives(
    sqlite_settings: dict[str, Any], limit: type[BaseException]
) -> None:
    """Until garbage was collected: others were refused, and our own release waited for our own transaction."""
    asked = database(sqlite_settings)
    for key in ("a", "b"):
        unrelated(key)  # so that there is something to read: rows that were not read keep the file open
    file = sqlite_settings["LOCATION"].removeprefix("sqlite:///")
    kept: list[BaseException] = []

    def work() -> None:
        try:
            ask(asked)
        except BaseException as error:
            kept.append(error)  # as one who reports it later: and with it what its frames have
            # It may be locked for a moment: another thread collects the connection of an earlier step, and the end of
            # the last one writes SQLite's log back. What this step keeps stays: nothing is collected in here.
            other = sqlite3.connect(file, timeout=SOON, isolation_level=None)
            try:
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
            finally:
                other.close()
            raise

    assert at_every_moment(work, kept.clear, limit, ALL) > 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_waits_for_nobody_who_was_interrupted(sqlite_settings: dict[str, Any]) -> None:
    """Each later one waited for five seconds."""
    gc.collect()  # a connection of another test that ends inside of ours would be interrupted in its place
    asked = database(sqlite_settings)
    ask(asked)
    at_every_moment(lambda: ask(asked), lambda: None, Limit)
    gc.collect()
    assert not sqlite_fork.gate.inside
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    registry().close()
