"""The way to a database that a framework knows: its machinery connects, with its driver and its options."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.database_address import DatabaseAddress, FrameworkDatabase
from ...core.errors import ConfigurationError
from .dialects import Dialect
from .watched import Unanswered, Watched


class ByFramework:
    def __init__(self, known: FrameworkDatabase, dialect: Dialect, connect_args: Mapping[str, Any]) -> None:
        self._known, self._dialect, self._connect_args = known, dialect, connect_args
        self.errors: tuple[type[Exception], ...] = (known.driver.Error, Unanswered)
        self._file: tuple[object, str] | None = None  #: of SQLite, with what it was found by
        if dialect.drivers and _root(known.driver.__name__) not in dialect.drivers:
            raise self._refused(f"its driver is {known.driver.__name__}")

    @property
    def name(self) -> str:
        place, title = self.place, self._dialect.title
        if place.kind == "sqlite":
            return f"The {title} database {place.name}"
        port = f":{place.port}" if place.port else ""
        return f"The {title} database {place.name} at {place.host or 'localhost'}{port}".replace("  ", " ")

    @property
    def place(self) -> DatabaseAddress:
        place = self._known.address
        # An SQLite has one write lock for the whole file: a lock that is extended or released while its caller's own
        # transaction has that would wait for itself. So the locks of a framework's database have a file beside it.
        if place.kind == "sqlite":
            return DatabaseAddress(place.kind, f"{real_path(place.name)}.locks")
        return replace(place, connect_args={**place.connect_args, **self._connect_args})

    @property
    def version(self) -> object:
        version = self._known.version
        if self._dialect.kind != "sqlite":
            return version
        found_by = version, file_version(self._known.address.name)  # a link may be pointed elsewhere
        if self._file is None or self._file[0] != found_by:  # to find the file takes a look at each of its folders
            self._file = found_by, self.place.name
        return version, file_version(self._file[1])

    def connect(self) -> Any:
        adopted: Any = None

        def adopt(connection: Any) -> None:
            nonlocal adopted
            adopted = connection  # first: it is closed if it cannot be used
            self._check(connection)
            adopted = self._dialect.adopt(connection)

        place, said = self.place, self._dialect.connect_args()
        if place.kind == "mysql":
            said = {name: math.ceil(seconds) for name, seconds in said.items()}  # mysqlclient knows whole ones only
        try:
            self._known.connect(said, self._connect_args, place.name if place.kind == "sqlite" else None, adopt)
        except BaseException:
            if adopted is not None:
                adopted.close()
            raise
        if isinstance(adopted, Watched):
            adopted.disarm()
        return adopted

    def _check(self, connection: Any) -> None:
        """A pool of the framework's would lend the project what we have changed, and have it back where we close it."""
        drivers, kind = self._dialect.drivers, connection.__class__
        if drivers and not any(_root(base.__module__) in drivers for base in kind.__mro__):
            raise self._refused(f"its connections are {kind.__module__}.{kind.__qualname__}")

    def _refused(self, why: str) -> ConfigurationError:
        known = " or ".join(self._dialect.drivers.values())
        return ConfigurationError(
            f"{self.name} cannot be used for locks, for {why}: they need a plain connection of {known}. Let the ENGINE "
            f"of this database be one with such a driver, or give the locks a LOCATION of their own."
        )


def _root(module: str) -> str:
    return module.partition(".")[0]


def real_path(name: str) -> str:
    """Of a file that several links may lead to."""
    return os.path.realpath(_path(name))


def file_version(name: str) -> object:
    """Another one where an SQLite's file is another: it was deleted, or replaced by a backup. None: there is none.

    Who has it open goes on in the old one, and who opens it finds the new one: both would have one lock.
    """
    try:
        found = os.stat(_path(name))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _path(name: str) -> str:
    """SQLite and Django take a URI, too."""
    return unquote(urlsplit(name).path) if name.startswith("file:") else name
