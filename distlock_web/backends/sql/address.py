"""Where the database is: ``LOCATION``, ``DATABASE`` and ``OPTIONS`` → how to open connections to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ...core.config import StoreConfig
from ...core.database_address import DatabaseAddress, FrameworkDatabase
from ...core.errors import ConfigurationError
from ...core.setting import check_flag
from .by_framework import ByFramework
from .dialects import Dialect, MySQL, PostgreSQL, SQLite

#: A lock is in front of a request: an answer that takes longer than this, in seconds, is none.
TIMEOUT = 2.0
#: Seconds that a thread waits for a connection when all are in use.
POOL_TIMEOUT = 1.0
MAX_CONNECTIONS = 10

#: MariaDB and MySQL wait for a locked row in whole seconds, which have to be over before the server counts as silent.
MYSQL_MIN_TIMEOUT = 1.5

OPTIONS = ("timeout", "max_connections", "pool_timeout", "create", "schema", "connect_args")


class Way(Protocol):
    """How to get to the database."""

    errors: tuple[type[Exception], ...]  #: of the driver

    @property
    def name(self) -> str:
        """For messages, without credentials."""

    @property
    def place(self) -> DatabaseAddress:
        """With all that the driver is told."""

    @property
    def version(self) -> object:
        """Another one where the place may be another."""

    def connect(self) -> Any:
        """A new connection of the driver, each of whose statements is a transaction of its own."""


@dataclass(frozen=True)
class SQLAddress:
    """A database, and the limits of the connections to it."""

    way: Way
    dialect: Dialect
    timeout: float
    pool_timeout: float
    max_connections: int
    create: bool  #: whether we make a table that is missing
    remedy: str  #: what to do about one that is missing or wrong
    schema: str | None

    @property
    def name(self) -> str:
        return self.way.name


def address(config: StoreConfig) -> SQLAddress:
    """The address that a store's settings name. Raises ``ConfigurationError`` for what cannot be right."""
    where, options = f"DISTLOCK[{config.alias!r}]", config.options
    config.check_options(OPTIONS)
    known = cast(FrameworkDatabase, config.resource()) if config.resource is not None else None
    migrated = known is not None and known.migrated
    if migrated and "schema" in options:
        raise ConfigurationError(
            f'{where}["OPTIONS"] has "schema" beside DATABASE: there the migrations make the tables, and not in '
            f'another schema. Leave it out. On PostgreSQL an entry of DATABASES may name the schema: "OPTIONS": '
            f'{{"options": "-c search_path=locks"}}.'
        )
    connect_args = _mapping(options, "connect_args", where)

    def dialect_of(kind: str, mariadb: bool = False) -> Dialect:
        shortest = MYSQL_MIN_TIMEOUT if kind == "mysql" else 0.05
        timeout = config.seconds("timeout", TIMEOUT, minimum=shortest)
        if kind == "mysql":
            return MySQL(timeout, mariadb=mariadb)
        return SQLite(timeout) if kind == "sqlite" else PostgreSQL(timeout)

    if known is not None:
        dialect = dialect_of(known.address.kind)
        way: Way = ByFramework(known, dialect, connect_args)
    else:
        from .by_url import ByURL, read  # here, for it is what needs SQLAlchemy

        kind, url = read(config.location, where)
        dialect = dialect_of(kind, url.get_backend_name() == "mariadb")
        way = ByURL(url, dialect, connect_args)
    create = check_flag(options.get("create", not migrated), f'{where}["OPTIONS"]["create"]')
    return SQLAddress(
        way=way,
        dialect=dialect,
        timeout=dialect.timeout,
        pool_timeout=config.seconds("pool_timeout", POOL_TIMEOUT, zero=True),
        max_connections=_count(options.get("max_connections", MAX_CONNECTIONS), where),
        create=create,
        remedy=_remedy(create, config.database if migrated else ""),
        schema=_text_or_none(options, "schema", where),
    )


def _remedy(create: bool, django_alias: str) -> str:
    if create:
        return "drop distlock_lease, distlock_waiter, distlock_holder and distlock_record, and they are made anew"
    return f'run "manage.py migrate --database {django_alias}"' if django_alias else 'run "distlock init"'


def _count(given: object, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigurationError(f'{where}["OPTIONS"]["max_connections"] is {given!r}; it has to be 1 or more.')
    return given


def _text_or_none(options: Mapping[str, Any], name: str, where: str) -> str | None:
    found = options.get(name)
    if found is not None and not (isinstance(found, str) and found):
        raise ConfigurationError(f'{where}["OPTIONS"][{name!r}] is {found!r}; it has to be a name.')
    return found


def _mapping(options: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = options.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigurationError(f'{where}["OPTIONS"][{name!r}] has to be a mapping of the driver\'s keywords.')
    return found
