"""What is set up on a database so that locks will be lost, or waiters not told: ``distlock doctor``'s findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.errors import DistLockError
from ...core.findings import Finding
from .database import Database
from .dialects import MySQL, PostgreSQL
from .statement import execute


def diagnose(database: Database) -> list[Finding]:
    """What is wrong with this database. Raises ``DistLockError``."""
    dialect = database.address.dialect
    try:
        with database.open() as connection:
            if isinstance(dialect, PostgreSQL):
                return [*_pooler(connection), *_postgresql(connection)]
            return list(_mysql(connection)) if isinstance(dialect, MySQL) else []
    except database.address.way.errors as error:
        raise DistLockError(f"{database.address.name} does not say how it is set up: {error}") from error


def _postgresql(connection: Any) -> Iterator[Finding]:
    for setting in ("fsync", "synchronous_commit"):
        if _one(connection, f"SHOW {setting}") == "off":
            yield _not_durable(f"{setting} is off", f"{setting} = on")
    states = [row[0] for row in execute(connection, "SELECT sync_state FROM pg_stat_replication").all()]
    # Who is not in pg_monitor sees that there are standbys, and not what they are.
    unseen = None in states and _one(connection, "SHOW synchronous_standby_names") != ""
    if states and not unseen and not {"sync", "quorum"} & set(states):
        yield Finding(
            "DL306",
            "warning",
            f"The server has {len(states)} standby{'s' if len(states) > 1 else ''}, none of them synchronous.",
            "A standby that takes over may lack the last locks: others take them while their holders still run.",
            "synchronous_standby_names, with synchronous_commit on.",
        )


def _pooler(connection: Any) -> Iterator[Finding]:
    if connection.info.backend_pid != _one(connection, "SELECT pg_backend_pid()"):
        yield Finding(
            "DL301",
            "info",
            "A pooler such as PgBouncer stands in front of the server.",
            "Waiters poll, because LISTEN does not work: more load, and slower hand-overs.",
            "LOCATION: the server itself, past the pooler.",
        )


def _mysql(connection: Any) -> Iterator[Finding]:
    flush = _variable(connection, "innodb_flush_log_at_trx_commit")
    if flush != "1":
        yield _not_durable(f"innodb_flush_log_at_trx_commit is {flush}", "innodb_flush_log_at_trx_commit = 1")


def _not_durable(problem: str, remedy: str) -> Finding:
    return Finding(
        "DL304",
        "warning",
        f"{problem}: a commit is confirmed before it is on the disk.",
        "After a crash the last locks are gone: others take them while their holders still run.",
        remedy,
    )


def _one(connection: Any, question: str) -> Any:
    return execute(connection, question).scalar()


def _variable(connection: Any, name: str) -> str | None:
    row = execute(connection, f"SHOW GLOBAL VARIABLES LIKE '{name}'").first()
    return None if row is None else str(row[1])
