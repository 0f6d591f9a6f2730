"""Where the server is: ``LOCATION``, ``CACHE`` and ``OPTIONS`` → how to make a connection with redis-py."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import redis
import redis.asyncio as aioredis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from ....core.config import StoreConfig
from ....core.errors import ConfigurationError
from ....core.location import without_credentials
from ....core.setting import check_seconds, unknown_name

if int(redis.__version__.partition(".")[0]) < 5:  # the first that can be told not to speak RESP3
    raise ImportError("redis-py has to be 5.0.1 or newer", name="redis")

DriverConnection: TypeAlias = redis.connection.AbstractConnection
AsyncDriverConnection: TypeAlias = aioredis.connection.AbstractConnection

#: Ours beside redis-py's: the size of the pool, and how long to wait for a connection when all are in use; how many
#: replicas must have a lock before it counts, and how long to wait for them.
POOL_OPTIONS = ("max_connections", "pool_timeout")
REPLICA_OPTIONS = ("min_replicas", "replica_timeout")
OWN_OPTIONS = (*POOL_OPTIONS, *REPLICA_OPTIONS)

#: A lock is in front of a request: an answer that takes longer than this is none.
TIMEOUT = 1.0
#: Replicas confirm within their network's round trip; this is for one that has to catch up.
REPLICA_TIMEOUT = 0.5

_TWINS = {
    redis.Connection: aioredis.Connection,
    redis.SSLConnection: aioredis.SSLConnection,
    redis.UnixDomainSocketConnection: aioredis.UnixDomainSocketConnection,
}

# What we decide ourselves. redis-py's retries (ten, with pauses) would hide from us that an answer is ambiguous and
# hang a request; the scripts' answers are bytes and the same in RESP2.
OURS: dict[str, Any] = {"decode_responses": False, "protocol": 2}
_NOT_FOR_US = (
    "parser_class",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "maint_notifications_config",
    "maint_notifications_pool_handler",  # with the next three what a pool of redis-py 8.0 adds for itself
    "orig_host_address",
    "orig_socket_timeout",
    "orig_socket_connect_timeout",
    "event_dispatcher",
)


@dataclass(frozen=True)
class RedisAddress:
    """A server, and the limits of the pool of connections to it."""

    connection_class: type[DriverConnection]
    kwargs: Mapping[str, Any] = field(repr=False)
    max_connections: int
    pool_timeout: float
    name: str  #: for messages, without credentials
    prefix: str  #: for messages, the store's
    min_replicas: int = 0  #: how many must have a lock before it counts
    replica_timeout: float = 0.0  #: seconds that they have for it
    clustered: bool = False  #: a node of a cluster

    def follow(self, moved: Callable[[], None]) -> None:
        """Call this where a new connection leads to another server than those before. This address is one server's."""

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
        known = _asyncio_parameters(twin)
        kwargs = {name: value for name, value in self.kwargs.items() if name in known or value not in (None, False)}
        for name in kwargs.keys() - known:
            raise ConfigurationError(
                f"{self.name}: redis-py {redis.__version__} has no {name} for asyncio. Leave it out, or take the locks "
                f"in synchronous code."
            )
        connection: AsyncDriverConnection = twin(**kwargs)
        connection.retry = aioredis.retry.Retry(NoBackoff(), 0)
        await connection.connect()  # type: ignore[no-untyped-call]
        return connection


def address(config: StoreConfig) -> RedisAddress:
    """The address that a store's settings name. Raises ``ConfigurationError`` for what cannot be right."""
    if config.resource is not None:
        pool = cast("redis.ConnectionPool", config.resource())
        return checked(config, *of_pool(pool), config.options)
    return checked(config, *of_url(config.location, f"DISTLOCK[{config.alias!r}]"), config.options)


def of_pool(pool: redis.ConnectionPool) -> tuple[type[DriverConnection], dict[str, Any]]:
    """How somebody else's pool connects. Its connections stay its own."""
    made_by = pool.connection_class
    if not isinstance(made_by, type):  # redis-py only calls it: fakeredis documents a function
        made_by = type(made_by(**pool.connection_kwargs))
    kwargs = {**pool.connection_kwargs, "max_connections": pool.max_connections}
    kwargs.pop("decode_responses", None)
    return made_by, kwargs


def is_fake(connection_class: type) -> bool:
    """Whether it is fakeredis's: its server lies in this process and answers at once, with no socket between."""
    return any(base.__module__.partition(".")[0] == "fakeredis" for base in connection_class.__mro__)


def _fake_class(where: str, given: object) -> type[DriverConnection]:
    """Of the connections to a server of fakeredis that stands in the settings."""
    fakeredis = sys.modules.get("fakeredis")  # whoever has a server of it has imported it
    if fakeredis is None or not isinstance(given, fakeredis.FakeServer):
        raise ConfigurationError(f'{where}["OPTIONS"]["server"] is for a FakeServer of fakeredis, in tests.')
    found: type[DriverConnection] | None = getattr(fakeredis, "FakeRedisConnection", None)
    if found is None:
        raise ConfigurationError(f'{where}["OPTIONS"]["server"] needs fakeredis 2.31 or newer.')
    return found


def checked(
    config: StoreConfig,
    connection_class: type[DriverConnection],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
) -> RedisAddress:
    """The address of these keywords, over which ``options`` win."""
    where = f"DISTLOCK[{config.alias!r}]"
    if "server" in options:
        if "+" in config.location.partition("://")[0] or "min_replicas" in options:
            raise ConfigurationError(f"{where} is on fakeredis, which is one server: no cluster, sentinel or replicas.")
        connection_class = _fake_class(where, options["server"])
    fake = is_fake(connection_class)
    if fake and find_spec("lupa") is None:
        raise ConfigurationError(f"{where} is on fakeredis, which runs no scripts here: pip install 'fakeredis[lua]'.")
    known = parameters(connection_class)
    for name, value in options.items():
        if name not in known and name not in OWN_OPTIONS:
            every = (*sorted(known), *OWN_OPTIONS, "sentinel_kwargs")
            raise ConfigurationError(unknown_name(f'{where}["OPTIONS"] has', name, every))
        kwargs[name] = value
    kwargs = {name: value for name, value in kwargs.items() if name in known or name in OWN_OPTIONS}
    _check_files(kwargs, where)
    for name in ("socket_timeout", "socket_connect_timeout"):
        kwargs[name] = check_seconds(kwargs.get(name) or TIMEOUT, f'{where}["OPTIONS"][{name!r}]')
    max_connections = _count(kwargs.pop("max_connections", 100), "max_connections", where)
    given = kwargs.pop("pool_timeout", TIMEOUT)
    pool_timeout = check_seconds(given, f'{where}["OPTIONS"]["pool_timeout"]', zero=True, text=True)
    replicas = _replicas(kwargs, where)
    if not {"driver_info", "lib_name", "lib_version"} & kwargs.keys():
        kwargs |= driver_info("driver_info" in known)
    kwargs.update(OURS)
    return RedisAddress(
        connection_class,
        kwargs,
        max_connections,
        pool_timeout or 0.0,
        ("fakeredis" if fake else "Redis") + _place(kwargs),
        config.prefix,
        *replicas,
    )


@cache
def driver_info(known: bool) -> dict[str, Any]:
    """What redis-py tells the server of itself: read from its package once, and not for each connection (2 ms).

    ``known``: it has such a keyword, as it has since 7.1. Before that it read it once by itself.
    """
    if not known:
        return {}
    from redis.driver_info import DriverInfo

    return {"driver_info": DriverInfo()}


def _replicas(kwargs: dict[str, Any], where: str) -> tuple[int, float]:
    """``min_replicas`` and ``replica_timeout``, taken out of the keywords. In a URL they are text."""
    minimum, given = (kwargs.pop(name, None) for name in REPLICA_OPTIONS)
    if minimum is None:
        if given is not None:
            raise ConfigurationError(f'{where}["OPTIONS"]["replica_timeout"] is for min_replicas, which is not given.')
        return 0, 0.0
    if isinstance(minimum, str) and minimum.isdecimal():
        minimum = int(minimum)
    half = kwargs["socket_timeout"] / 2
    setting = f'{where}["OPTIONS"]["replica_timeout"]'
    seconds = min(REPLICA_TIMEOUT, half) if given is None else check_seconds(given, setting, minimum=0.001, text=True)
    if seconds > half:  # two such times may pass before an answer comes: see Stream.confirm
        raise ConfigurationError(
            f"{setting} is {seconds:g}; it has to be at most half of socket_timeout, which is {2 * half:g} s."
        )
    return _count(minimum, "min_replicas", where), seconds


def _count(given: object, name: str, where: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigurationError(f'{where}["OPTIONS"][{name!r}] is {given!r}; it has to be a whole number, 1 or more.')
    return given


def of_url(location: str, where: str) -> tuple[type[DriverConnection], dict[str, Any]]:
    """How a URL of redis-py says to connect; without one, its defaults."""
    if not location:
        return redis.Connection, {}
    try:
        kwargs = dict(parse_url(location))  # type: ignore[no-untyped-call]
    except ValueError:
        raise ConfigurationError(
            f'{where}["LOCATION"] is {without_credentials(location)!r}; it has to be a URL such as '
            f"redis://127.0.0.1:6379/0, rediss://... (TLS) or unix:///path. In a user name or password / ? # : @ [ ] "
            f"and % have to be percent-encoded, / as %2F."
        ) from None  # its text may have the password in it
    if "path" not in kwargs and "db" not in kwargs and (name := urlsplit(location).path.strip("/")):
        raise ConfigurationError(
            f'{where}["LOCATION"] names the database {name!r}, but the databases of Redis are numbers: '
            f"redis://127.0.0.1:6379/0."
        )
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


def parameters(connection_class: type) -> set[str]:
    """Every keyword that a connection class of redis-py understands."""
    names: set[str] = set()
    for base in connection_class.__mro__:
        if "__init__" in vars(base):
            for parameter in inspect.signature(vars(base)["__init__"]).parameters.values():
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    names.add(parameter.name)
    return names - {"self", "args", "kwargs", *_NOT_FOR_US, *OURS}


@cache
def _asyncio_parameters(twin: type) -> set[str]:
    """Some releases of redis-py know less there than in threads."""
    return parameters(twin) | OURS.keys()


def _place(kwargs: Mapping[str, Any]) -> str:
    if "path" in kwargs:
        return f" at {kwargs['path']}"
    return f" at {kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
