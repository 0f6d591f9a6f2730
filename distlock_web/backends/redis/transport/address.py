"""Where the server is: ``LOCATION``, ``CACHE`` and ``OPTIONS`` → how to make a connection with redis-py."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import redis
import redis.asyncio as aioredis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from ....core.config import StoreConfig, check_seconds, unknown_name
from ....core.errors import ConfigurationError

DriverConnection: TypeAlias = redis.connection.AbstractConnection
AsyncDriverConnection: TypeAlias = aioredis.connection.AbstractConnection

#: Ours beside redis-py's: the size of the pool, and how long to wait for a connection when all are in use.
POOL_OPTIONS = ("max_connections", "pool_timeout")

#: A lock is in front of a request: an answer that takes longer than this is none.
TIMEOUT = 1.0

_TWINS = {
    redis.Connection: aioredis.Connection,
    redis.SSLConnection: aioredis.SSLConnection,
    redis.UnixDomainSocketConnection: aioredis.UnixDomainSocketConnection,
}

# What we decide ourselves. redis-py's retries (ten, with pauses) would hide from us that an answer is ambiguous and
# hang a request; the scripts' answers are bytes and the same in RESP2.
_OURS: dict[str, Any] = {"decode_responses": False, "protocol": 2}
_NOT_FOR_US = (
    "parser_class",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "maint_notifications_config",
    "event_dispatcher",
)


@dataclass(frozen=True)
class Address:
    """A server, and the limits of the pool of connections to it."""

    connection_class: type[DriverConnection]
    kwargs: Mapping[str, Any]
    max_connections: int
    pool_timeout: float
    name: str  #: for messages, without credentials
    prefix: str  #: for messages, the store's

    def connect(self, timeout: float | None = None) -> DriverConnection:
        """A blocking connection, open. Raises redis-py's errors, within the time-outs or within ``timeout``."""
        kwargs = dict(self.kwargs)
        if timeout is not None:
            for name in ("socket_timeout", "socket_connect_timeout"):
                kwargs[name] = min(kwargs[name], timeout)
        connection = self.connection_class(**kwargs, retry=Retry(NoBackoff(), 0))
        connection.connect()  # type: ignore[no-untyped-call]
        return connection

    async def aconnect(self) -> AsyncDriverConnection:
        """An asyncio connection, open."""
        twin = next(_TWINS[base] for base in self.connection_class.__mro__ if base in _TWINS)
        connection: AsyncDriverConnection = twin(**self.kwargs)
        connection.retry = aioredis.retry.Retry(NoBackoff(), 0)
        await connection.connect()  # type: ignore[no-untyped-call]
        return connection


def address(config: StoreConfig) -> Address:
    """The address that a store's settings name. Raises ``ConfigurationError`` for what cannot be right."""
    where = f"DISTLOCK[{config.alias!r}]"
    if config.resource is not None:
        pool = cast("redis.ConnectionPool", config.resource())
        if isinstance(pool, SentinelConnectionPool):
            raise ConfigurationError(
                f'{where}["CACHE"] is {config.cache!r}, whose master is found by Redis Sentinel; this backend is for '
                f"one server with an address. Give it a LOCATION that leads to the master, such as a proxy's."
            )
        connection_class, kwargs = pool.connection_class, dict(pool.connection_kwargs)
        kwargs["max_connections"] = pool.max_connections
        kwargs.pop("decode_responses", None)
    else:
        connection_class, kwargs = _from_url(config.location, where)
    for name in _NOT_FOR_US:
        kwargs.pop(name, None)
    known = _parameters(connection_class)
    for name, value in config.options.items():
        if name not in known and name not in POOL_OPTIONS:
            raise ConfigurationError(unknown_name(f'{where}["OPTIONS"] has', name, (*sorted(known), *POOL_OPTIONS)))
        kwargs[name] = value
    kwargs = {name: value for name, value in kwargs.items() if name in known or name in POOL_OPTIONS}
    _check_files(kwargs, where)
    for name in ("socket_timeout", "socket_connect_timeout"):
        kwargs[name] = check_seconds(kwargs.get(name) or TIMEOUT, f'{where}["OPTIONS"][{name!r}]')
    max_connections = kwargs.pop("max_connections", 100)
    if not isinstance(max_connections, int) or max_connections < 1:
        raise ConfigurationError(
            f'{where}["OPTIONS"]["max_connections"] is {max_connections!r}; it has to be 1 or more.'
        )
    pool_timeout = check_seconds(kwargs.pop("pool_timeout", TIMEOUT), f'{where}["OPTIONS"]["pool_timeout"]', zero=True)
    kwargs.update(_OURS)
    return Address(connection_class, kwargs, max_connections, pool_timeout or 0.0, _name(kwargs), config.prefix)


def _from_url(location: str, where: str) -> tuple[type[DriverConnection], dict[str, Any]]:
    if not location:
        return redis.Connection, {}
    try:
        kwargs = dict(parse_url(location))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(
            f'{where}["LOCATION"] is {location!r}; it has to be a URL such as redis://127.0.0.1:6379/0, '
            f"rediss://... (TLS) or unix:///path: {error}"
        ) from error
    return kwargs.pop("connection_class", redis.Connection), kwargs


def _check_files(kwargs: Mapping[str, Any], where: str) -> None:
    """A certificate that is not there would look like a server that is not."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path"):
        path = kwargs.get(name)
        if path is None:
            continue
        if not os.access(path, os.R_OK):
            why = "cannot be read" if os.path.exists(path) else "does not exist"
            raise ConfigurationError(f"{where}: {name} names {str(path)!r}, which {why}.")


def _parameters(connection_class: type) -> set[str]:
    """Every keyword that a connection class of redis-py understands."""
    names: set[str] = set()
    for base in connection_class.__mro__:
        if "__init__" in vars(base):
            for parameter in inspect.signature(vars(base)["__init__"]).parameters.values():
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    names.add(parameter.name)
    return names - {"self", "args", "kwargs", *_NOT_FOR_US, *_OURS}


def _name(kwargs: Mapping[str, Any]) -> str:
    if "path" in kwargs:
        return f"Redis at {kwargs['path']}"
    return f"Redis at {kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
