"""The transaction of a caller whose tables are in the same database: a record is written in it, and commits with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Executable

from ...core.backend import Answer, CallersTransaction
from ...core.config import DatabaseAddress
from .address import Address, real_path
from .database import Database

_PORTS = {"postgresql": 5432, "mysql": 3306}
_LOCAL = frozenset({"", "localhost", "127.0.0.1", "::1"})


class Borrowed:
    """What runs our statements in a transaction of somebody else's, who begins and ends it."""

    def __init__(self, transaction: CallersTransaction, database: Database) -> None:
        self.tables = database.tables
        self._transaction = transaction
        style = {"%s": "format", "?": "qmark"}[transaction.placeholder]
        self._dialect = type(database.engine.dialect)(paramstyle=style)  # type: ignore[call-arg]

    def run(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Answer:
        given = parameters or {}
        compiled: Any = statement.compile(dialect=self._dialect, column_keys=list(given))  # type: ignore[attr-defined]
        values = compiled.construct_params(given)
        return self._transaction.execute(str(compiled), [values[name] for name in compiled.positiontup])


def is_at(ours: Address, theirs: DatabaseAddress) -> bool:
    """Whether this is the store's own database."""
    url, kind = ours.url, ours.url.get_backend_name().replace("mariadb", "mysql")
    if theirs.kind.replace("mariadb", "mysql") != kind:
        return False
    if kind == "sqlite":
        return not theirs.in_memory and real_path(url.database or "") == real_path(theirs.name)
    sockets = {each["unix_socket"] for each in (ours.connect_args, theirs.connect_args) if "unix_socket" in each}
    if len(sockets) > 1:  # two servers of MySQL's on this machine
        return False
    return (url.database, _place(kind, url.host, ours.connect_args.get("port") or url.port)) == (
        theirs.name,
        _place(kind, theirs.host, theirs.port),
    )


def _place(kind: str, host: str | None, port: int | str | None) -> tuple[str, int | str]:
    return "" if (host or "") in _LOCAL else str(host), port or _PORTS[kind]
