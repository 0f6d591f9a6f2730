"""Where the database is: ``LOCATION``, ``DATABASE`` and ``OPTIONS`` → how to open connections to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ...core.config import DatabaseAddress, StoreConfig, check_flag, check_seconds, unknown_name
from ...core.errors import ConfigurationError
from .dialects import Dialect, MySQL, PostgreSQL, SQLite

#: A lock is in front of a request: an answer that takes longer than this, in seconds, is none.
TIMEOUT = 2.0
#: Seconds that a thread waits for a connection when all are in use.
POOL_TIMEOUT = 1.0
MAX_CONNECTIONS = 10

OPTIONS = ("timeout", "max_connections", "pool_timeout", "create", "schema", "listen", "connect_args")
_KINDS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "pysqlite"}
_TITLES = {"postgresql": "PostgreSQL", "mysql": "MySQL", "sqlite": "SQLite"}


@dataclass(frozen=True)
class Address:
    """A database, and the limits of the connections to it."""

    url: URL
    dialect: Dialect
    name: str  #: for messages, without credentials
    timeout: float
    pool_timeout: float
    max_connections: int
    create: bool  #: whether we make a table that is missing
    remedy: str  #: what to do about one that is missing or wrong
    schema: str | None
    listen: bool | None  #: whether to LISTEN on PostgreSQL; None: unless there is a pooler between
    connect_args: Mapping[str, Any] = field(repr=False)

    @property
    def in_memory(self) -> bool:
        return self.url.get_backend_name() == "sqlite" and _in_memory(self.url.database or "")


def address(config: StoreConfig) -> Address:
    """The address that a store's settings name. Raises ``ConfigurationError`` for what cannot be right."""
    where = f"DISTLOCK[{config.alias!r}]"
    options = config.options
    for name in options:
        if name not in OPTIONS:
            raise ConfigurationError(unknown_name(f'{where}["OPTIONS"] has', name, OPTIONS))
    timeout = check_seconds(options.get("timeout", TIMEOUT), f'{where}["OPTIONS"]["timeout"]', minimum=0.05)
    if config.resource is not None:
        known = cast(DatabaseAddress, config.resource())
        kind, url, beside = known.kind, _url(known), known.kind == "sqlite" and not _in_memory(known.name)
        migrated, connect_args = known.migrated and known.kind != "sqlite", dict(known.connect_args)
    else:
        kind, url = _from_location(config.location, where)
        beside, migrated, connect_args = False, False, {}
    dialect: Dialect
    if kind == "sqlite":
        # An SQLite has one write lock for the whole file: a lock that is extended or released while its caller's own
        # transaction has that would wait for itself. So the locks of a framework's database have a file beside it.
        url = url.set(database=f"{url.database}.locks") if beside else url
        dialect = SQLite(timeout, wal=not _in_memory(url.database or ""))
    else:
        dialect = PostgreSQL(timeout) if kind == "postgresql" else MySQL(timeout)
    create = check_flag(options.get("create", not migrated), f'{where}["OPTIONS"]["create"]')
    return Address(
        url=url.set(drivername=dialect.driver),
        dialect=dialect,
        name=_name(kind, url),
        timeout=timeout,
        pool_timeout=check_seconds(
            options.get("pool_timeout", POOL_TIMEOUT), f'{where}["OPTIONS"]["pool_timeout"]', zero=True
        ),
        max_connections=_count(options.get("max_connections", MAX_CONNECTIONS), where),
        create=create,
        remedy=_remedy(create, config.database if migrated else ""),
        schema=_text_or_none(options, "schema", where),
        listen=None
        if options.get("listen") is None
        else check_flag(options["listen"], f'{where}["OPTIONS"]["listen"]'),
        connect_args={**dialect.connect_args(), **connect_args, **_mapping(options, "connect_args", where)},
    )


def _from_location(location: str, where: str) -> tuple[str, URL]:
    example = "postgresql://user:password@host:5432/database, mysql://… or sqlite:////path/to/file"
    if not location:
        raise ConfigurationError(f"{where} has no LOCATION; it has to be a URL such as {example}.")
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):  # whose text may have the password in it
        raise ConfigurationError(f'{where}["LOCATION"] is no URL; it has to be one such as {example}.') from None
    scheme, _, driver = url.drivername.partition("+")
    kind = _KINDS.get(scheme)
    if kind is None or driver not in ("", _DRIVERS[kind]):
        raise ConfigurationError(
            f'{where}["LOCATION"] begins with {url.drivername}://, which this backend does not know: it may be '
            f"postgresql[+psycopg]://, mysql[+pymysql]://, mariadb[+pymysql]:// or sqlite://."
        )
    if kind == "sqlite" and _in_memory(url.database or ""):
        raise ConfigurationError(
            f'{where}["LOCATION"] is an SQLite in memory, which no other process sees: name a file, '
            f'sqlite:////path/to/file, or say "BACKEND": "memory".'
        )
    return kind, url


def _url(known: DatabaseAddress) -> URL:
    return URL.create(
        known.kind, known.user or None, known.password or None, known.host or None, known.port, known.name or None
    )


def _in_memory(file: str) -> bool:
    return file in ("", ":memory:") or "mode=memory" in file


def _name(kind: str, url: URL) -> str:
    if kind == "sqlite":
        return f"The SQLite database {url.database}"
    port = f":{url.port}" if url.port else ""
    return f"The {_TITLES[kind]} database {url.database or ''} at {url.host or 'localhost'}{port}".replace("  ", " ")


def _remedy(create: bool, django_alias: str) -> str:
    if create:
        return "drop distlock_lease and distlock_waiter, and they are made anew"
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
