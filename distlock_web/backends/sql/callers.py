"""The transaction of a caller whose tables are in the same database: a record is written in it, and commits with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ...core.backend import CallersTransaction, StatementResult
from ...core.database_address import DatabaseAddress
from .address import SQLAddress
from .by_framework import real_path
from .statement import Statement

_SEARCH_PATH = re.compile(r"(?:-c\s*|--)search_path=(\S+)")
_PORTS = {"postgresql": 5432, "mysql": 3306}
#: Where a driver reads the rest of an address, which is not seen here: two are one where they name the same.
_ELSEWHERE = ("service", "read_default_file", "read_default_group")
#: With the folders in which PostgreSQL's clients look for the socket of a server that they are not told of.
_LOCAL = frozenset({"", "localhost", "127.0.0.1", "::1", "/tmp", "/run/postgresql"})  # noqa: S108


class Borrowed:
    """What runs our statements in a transaction of other code, which begins and ends it."""

    def __init__(self, transaction: CallersTransaction) -> None:
        self._transaction = transaction

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> StatementResult:
        return self._transaction.execute(*statement.bound(self._transaction.placeholder, parameters))


def is_at(ours: SQLAddress, theirs: DatabaseAddress) -> bool:
    """Whether this is the store's own database."""
    place, kind = ours.way.place, ours.dialect.kind
    if theirs.kind.replace("mariadb", "mysql") != kind:
        return False
    if kind == "sqlite":
        return not theirs.in_memory and real_path(place.name) == real_path(theirs.name)
    mine, other = _said(place), _said(theirs)
    sockets = {each["unix_socket"] for each in (mine, other) if "unix_socket" in each}
    if len(sockets) == 2 or _place(kind, mine) != _place(kind, other):  # the first: two of MySQL's on this machine
        return False
    return ours.schema is not None or _search_path(mine) == _search_path(other)


def _said(place: DatabaseAddress) -> Mapping[str, Any]:
    return {"dbname": place.name, "host": place.host, "port": place.port, **place.connect_args}


def _search_path(said: Mapping[str, Any]) -> str:
    """In which schemas PostgreSQL looks for tables, if its options say so."""
    found = _SEARCH_PATH.findall(str(said.get("options") or "").replace("\\ ", ""))
    return found[-1].replace(" ", "") if found else ""


def _place(kind: str, said: Mapping[str, Any]) -> tuple[str, ...]:
    """The name, host and port, as the arguments of a driver say them, and where it reads more."""
    name = next((said[word] for word in ("db", "database", "dbname") if said.get(word)), "")  # the last: its own place
    host = str(said.get("hostaddr") or said.get("host") or "")
    if host.startswith("/"):
        host = os.path.realpath(host)
    elsewhere = (str(said.get(word) or "") for word in _ELSEWHERE)
    return str(name or ""), "" if host in _LOCAL else host, str(said.get("port") or _PORTS[kind]), *elsewhere
