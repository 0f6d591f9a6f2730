"""The way to a database by its URL: SQLAlchemy reads it, our own driver connects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ...core.config import StoreConfig
from ...core.database_address import DatabaseAddress
from ...core.errors import ConfigurationError
from ...core.location import has_stray_at
from .by_framework import file_version
from .dialects import Dialect

_KINDS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
#: What SQLAlchemy calls the driver.
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "pysqlite"}
#: As SQLAlchemy reads them: a user ends at the first colon and may have an @, a password ends at the next @.
_CREDENTIALS = re.compile(r"[^:/]*(?::[^@]*)?@")
#: In front of the query: of ``host:1/database?file=a@b&password=…`` SQLAlchemy takes b&password=… for the host.
_PASSWORD_PARAMETER = re.compile(r"(?i)[?&]\w*pass\w*=")


class ByURL:
    def __init__(self, url: URL, dialect: Dialect, connect_args: Mapping[str, Any]) -> None:
        self._url, self._dialect = url, dialect
        of_driver: Any = url.set(drivername=f"{dialect.kind}+{_DRIVERS[dialect.kind]}").get_dialect()
        try:
            driver = of_driver.import_dbapi()
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{self.name} needs a driver that is not installed ({error.name}): pip install "
                f'"distlock_web[{dialect.extra}]".'
            ) from error
        self.errors: tuple[type[Exception], ...] = (driver.Error,)
        self._place, said = of_driver(dbapi=driver).create_connect_args(url)
        self._said: dict[str, Any] = {**said, **dialect.connect_args(), **connect_args}

    @property
    def name(self) -> str:
        url, title = self._url, self._dialect.title
        if self._dialect.kind == "sqlite":
            return f"The {title} database {url.database}"
        port = f":{url.port}" if url.port else ""
        return f"The {title} database {url.database or ''} at {url.host or 'localhost'}{port}".replace("  ", " ")

    @property
    def place(self) -> DatabaseAddress:
        # What stands behind the ? of a URL counts: a socket, perhaps, or another host than in front of it.
        return DatabaseAddress(self._dialect.kind, self._url.database or "", connect_args=self._said)

    @property
    def version(self) -> object:
        return file_version(self._place[0]) if self._dialect.kind == "sqlite" else None

    def connect(self) -> Any:
        return self._dialect.connect(*self._place, **self._said)


def read(config: StoreConfig) -> tuple[str, URL]:
    """The kind of the database, and where it is. ``ConfigurationError``."""
    example = "postgresql://user:password@host:5432/database, mysql://… or sqlite:////path/to/file"
    location, setting = config.location, config.setting("LOCATION")
    if not location:
        raise ConfigurationError(f"{config.where} has no LOCATION; it has to be a URL such as {example}.")
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):  # whose text may have the password in it
        raise ConfigurationError(f"{setting} is no URL; it has to be one such as {example}.") from None
    scheme, _, driver = url.drivername.partition("+")
    kind = _KINDS.get(scheme)
    if kind is None or driver not in ("", _DRIVERS[kind]):
        raise ConfigurationError(
            f"{setting} begins with {url.drivername}://, which this backend does not know: it may be "
            f"postgresql[+psycopg]://, mysql[+pymysql]://, mariadb[+pymysql]:// or sqlite://."
        )
    if kind != "sqlite" and _may_show_password(location):
        raise ConfigurationError(
            f"{setting} has an @ too many: one in the user, the password, the database or behind the ? has to be %40."
        )
    if DatabaseAddress(kind, url.database or "").in_memory:
        raise ConfigurationError(
            f"{setting} is an SQLite in memory, which no other process sees: name a file, "
            f'sqlite:////path/to/file, or say "BACKEND": "memory".'
        )
    return kind, url


def _may_show_password(location: str) -> bool:
    """Whether a part of a password is, perhaps, a host or a database for SQLAlchemy, which messages show."""
    text = location.partition("://")[2]
    found = _CREDENTIALS.match(text)
    credentials = found[0] if found else ""
    place, _, query = text.removeprefix(credentials).partition("?")
    if "@" in place or _PASSWORD_PARAMETER.search(credentials + place):
        return True
    return has_stray_at(":" in credentials, place, query)
