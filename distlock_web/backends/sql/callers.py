"""The transaction of a caller whose tables are in the same database: a record is written in it, and commits with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Executable

from ...core.backend import CallersTransaction, StatementResult
from ...core.config import DatabaseAddress
from .address import Address, real_path
from .database import Database

_PORTS = {"postgresql": 5432, "mysql": 3306}
#: Where a driver reads the rest of an address, which is not seen here: two are one where they name the same.
_ELSEWHERE = ("service", "read_default_file", "read_default_group")
#: With the folders in which PostgreSQL's clients look for the socket of a server that they are not told of.
_LOCAL = frozenset({"", "localhost", "127.0.0.1", "::1", "/tmp", "/run/postgresql"})  # noqa: S108


class Borrowed:
    """What runs our statements in a transaction of somebody else's, who begins and ends it."""

    def __init__(self, transaction: CallersTransaction, database: Database) -> None:
        self.tables = database.tables
        self._transaction = transaction
        style = {"%s": "format", "?": "qmark"}[transaction.placeholder]
        self._dialect = type(database.engine.dialect)(paramstyle=style)  # type: ignore[call-arg]

    def run(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> StatementResult:
        given = parameters or {}
        compiled: Any = statement.compile(dialect=self._dialect, column_keys=list(given))  # type: ignore[attr-defined]
        values = compiled.construct_params(given, escape_names=False)
        return self._transaction.execute(str(compiled), [values[name] for name in compiled.positiontup])


def is_at(ours: Address, theirs: DatabaseAddress) -> bool:
    """Whether this is the store's own database."""
    url, kind = ours.url, ours.url.get_backend_name().replace("mariadb", "mysql")
    if theirs.kind.replace("mariadb", "mysql") != kind:
        return False
    if kind == "sqlite":
        return not theirs.in_memory and real_path(url.database or "") == real_path(theirs.name)
    # What stands behind the ? of a URL counts: a socket, perhaps, or another host than in front of it.
    said: Mapping[str, Any] = url.get_dialect()().create_connect_args(url)[1]
    mine = {**said, **ours.connect_args}
    other = {"dbname": theirs.name, "host": theirs.host, "port": theirs.port, **theirs.connect_args}
    sockets = {each["unix_socket"] for each in (mine, other) if "unix_socket" in each}
    return len(sockets) < 2 and _place(kind, mine) == _place(kind, other)  # else two servers of MySQL's on this machine


def _place(kind: str, said: Mapping[str, Any]) -> tuple[str, ...]:
    """The name, host and port, as the arguments of a driver say them, and where it reads more."""
    name = next((said[word] for word in ("dbname", "database", "db") if word in said), "")
    host = str(said.get("hostaddr") or said.get("host") or "")
    if host.startswith("/"):
        host = os.path.realpath(host)
    elsewhere = (str(said.get(word) or "") for word in _ELSEWHERE)
    return str(name or ""), "" if host in _LOCAL else host, str(said.get("port") or _PORTS[kind]), *elsewhere
