"""Where the database is: ``LOCATION``, ``DATABASE`` and ``OPTIONS`` → how to open connections to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from ...core.config import StoreConfig
from ...core.database_address import DatabaseAddress, FrameworkDatabase
from ...core.errors import ConfigurationError
from ...core.setting import Setting, check_count, check_flag, check_mapping, check_seconds, shown, table
from .by_framework import ByFramework
from .dialects import Dialect, MySQL, PostgreSQL, SQLite

#: MariaDB and MySQL wait for a locked row in whole seconds, which have to be over before the server counts as silent.
MYSQL_MIN_TIMEOUT = 1.5


def _check_schema(given: object, setting: str) -> str | None:
    if given is not None and not (isinstance(given, str) and given):
        raise ConfigurationError(f"{setting} is {shown(given)}; it has to be a name.")
    return given


OPTIONS = table(
    Setting(
        "timeout", check_seconds, 2.0,
        "seconds for one operation, from having a connection to the commit. If others keep a row locked, the store "
        "gives up after three quarters of it (MariaDB and MySQL count whole seconds, so at least 1.5 there; SQLite, "
        "which locks its whole file, after all of it)",
    ),
    Setting(
        "max_connections", check_count, 10,
        "connections of each process. In addition, one connection listens and two renew. Two more are opened only "
        "when all are in use, for calls that release and extend",
    ),
    Setting("pool_timeout", partial(check_seconds, zero=True), 1.0, "seconds to wait for a free connection"),
    Setting("create", check_flag, None, "make missing tables", "`True`; Django: `False`"),
    Setting(
        "schema", _check_schema, None,
        "where the tables are. Not with Django's `DATABASE`, where the migrations decide", "the database's default",
    ),
    Setting(
        "connect_args", check_mapping, {},
        'further keywords of the driver, such as `{"sslmode": "verify-full"}` or `{"ssl_ca": "/etc/ssl/db.pem"}`',
    ),
)  # fmt: skip


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
    given = config.read_options(OPTIONS)
    known = cast(FrameworkDatabase, config.resource()) if config.resource is not None else None
    migrated = known is not None and known.migrated
    if migrated and "schema" in config.options:
        raise ConfigurationError(
            f"{config.setting('OPTIONS')} has "
            '"schema" beside DATABASE: there the migrations make the tables, and not in '
            'another schema. Leave it out. On PostgreSQL an entry of DATABASES may name the schema: "OPTIONS": '
            f'{{"options": "-c search_path=locks"}}.'
        )

    def dialect_of(kind: str, mariadb: bool = False) -> Dialect:
        shortest = MYSQL_MIN_TIMEOUT if kind == "mysql" else 0.05
        timeout = check_seconds(given["timeout"], config.option("timeout"), minimum=shortest)
        if kind == "mysql":
            return MySQL(timeout, mariadb=mariadb)
        return SQLite(timeout) if kind == "sqlite" else PostgreSQL(timeout)

    if known is not None:
        dialect = dialect_of(known.address.kind)
        way: Way = ByFramework(known, dialect, given["connect_args"])
    else:
        from .by_url import ByURL, read  # here, for it is what needs SQLAlchemy

        kind, url = read(config)
        dialect = dialect_of(kind, url.get_backend_name() == "mariadb")
        way = ByURL(url, dialect, given["connect_args"])
    create = not migrated if given["create"] is None else given["create"]
    return SQLAddress(
        way=way,
        dialect=dialect,
        timeout=dialect.timeout,
        pool_timeout=given["pool_timeout"],
        max_connections=given["max_connections"],
        create=create,
        remedy=_remedy(create, config.database if migrated else ""),
        schema=given["schema"],
    )


def _remedy(create: bool, django_alias: str) -> str:
    if create:
        return "drop distlock_lease, distlock_waiter, distlock_holder and distlock_record, and they are made anew"
    return f'run "manage.py migrate --database {django_alias}"' if django_alias else 'run "distlock init"'
