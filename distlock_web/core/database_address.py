"""A database as a framework knows it: where it is, and how to open a connection of one's own to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where a database is."""

    kind: str  #: ``postgresql``, ``mysql`` or ``sqlite``
    name: str  #: for SQLite its file
    host: str = ""
    port: int | str | None = None  #: several, one for each of several hosts, as text: as libpq takes them
    connect_args: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: further keywords of its driver

    @property
    def in_memory(self) -> bool:
        """An SQLite that no other process sees, as Django's test runner has it."""
        return self.kind == "sqlite" and (self.name in ("", ":memory:") or "mode=memory" in self.name)


class FrameworkDatabase(Protocol):
    """A database of a framework's, for a backend that opens connections of its own on it by that one's machinery."""

    migrated: bool  #: its tables come by the framework's migrations
    driver: Any  #: the module of its driver

    @property
    def address(self) -> DatabaseAddress:
        """Where it is now: a test run gives it another name."""

    @property
    def version(self) -> object:
        """Another one where the address may be another."""

    def connect(
        self, before: Mapping[str, Any], after: Mapping[str, Any], file: str | None, adopt: Callable[[Any], None]
    ) -> None:
        """Open a connection, each of whose statements is a transaction of its own. Raises the driver's errors.

        It is ``adopt``'s from then on, which is called before anything is asked on it.

        The driver is told ``before``, the framework's own options, and ``after``. ``file``: of SQLite, in place of its.
        """
