"""Where the server is: ``LOCATION``, ``CACHE`` and ``OPTIONS`` → how to make a connection with redis-py."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, partial
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
from ....core.location import ENCODED, split_location
from ....core.process import after_fork
from ....core.setting import (
    Setting,
    Settings,
    check_count,
    check_file,
    check_known,
    check_seconds,
    or_none,
    table,
    unchecked,
    unknown_name,
)
from .credentials import guarded


def check_release(version: str) -> None:
    """Before redis-py 5 it could not be told not to speak RESP3."""
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < (5, 0, 1):
        raise ImportError(f"redis-py has to be 5.0.1 or newer, and is {version}", name="redis")


check_release(redis.__version__)

DriverConnection: TypeAlias = redis.connection.AbstractConnection
AsyncDriverConnection: TypeAlias = aioredis.connection.AbstractConnection

#: A lock is in front of a request: an answer that takes longer than this is none.
TIMEOUT = 1.0
#: Replicas confirm within their network's round trip; this is for one that has to catch up.
REPLICA_TIMEOUT = 0.5


def timeout_row(name: str, default: float, meaning: str) -> Setting:
    """None and 0, with which redis-py waits for ever, are the default."""
    return Setting(name, lambda given, setting: check_seconds(given or default, setting), default, meaning)


#: Keywords of redis-py's connections, of which it takes any other, too.
OF_REDIS_PY = table(
    Setting("host", unchecked, None, "the server", "from `LOCATION`, else `localhost`"),
    Setting("port", unchecked, None, "its port", "from `LOCATION`, else 6379"),
    Setting("username", unchecked, None, "the user, of an ACL", "from `LOCATION`, else none"),
    Setting("password", unchecked, None, "the password", "from `LOCATION`, else none"),
    Setting("db", unchecked, None, "the number of the database", "from `LOCATION`, else 0"),
    timeout_row("socket_timeout", TIMEOUT, "seconds that an answer may take"),
    timeout_row("socket_connect_timeout", TIMEOUT, "seconds that it may take to connect"),
    Setting(
        "health_check_interval", unchecked, None,
        "seconds of idleness after which a connection is tested before it is used; in threads only, because an event "
        "loop notices a closed connection", "0: no test",
    ),
    Setting("ssl_ca_certs", check_file, None, "the file with the certificates of the authorities", "the system's"),
    Setting("ssl_ca_path", check_file, None, "a folder of such files", "the system's"),
    Setting("ssl_certfile", check_file, None, "the file with the certificate of the client", "none"),
    Setting("ssl_keyfile", check_file, None, "the file with the key of that certificate", "none"),
    Setting("server", unchecked, None, "in tests, a `FakeServer` of [fakeredis](testing.md#on-fakeredis)", "none"),
)  # fmt: skip
OPTIONS = {
    **OF_REDIS_PY,
    **table(
        Setting("max_connections", check_count, 100, "connections of the pool; opened ones stay open"),
        Setting(
            "pool_timeout", partial(check_seconds, zero=True, text=True), TIMEOUT,
            "seconds to wait for a connection when all are in use; 0: not at all",
        ),
        Setting(
            "min_replicas", or_none(partial(check_count, text=True)), None,
            "how many replicas must have a lock before [it counts](redis.md#min_replicas)", "none",
        ),
        Setting(
            "replica_timeout", or_none(partial(check_seconds, minimum=0.001, text=True)), None,
            "seconds that they have for it, at most half of `socket_timeout`", f"{REPLICA_TIMEOUT}, or that half",
        ),
    ),
}  # fmt: skip

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

_connecting_to_fake = threading.RLock()  # reentrant: garbage that is collected inside may release a lock of its own


def _forked() -> None:
    global _connecting_to_fake
    _connecting_to_fake = threading.RLock()


after_fork(_forked)


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
        kwargs = guarded(self.kwargs)
        if timeout is not None:
            for name in ("socket_timeout", "socket_connect_timeout"):
                kwargs[name] = min(kwargs[name], timeout)
        # The first connection to a fake server makes its database: of two that come at once each would have its own.
        with _connecting_to_fake if is_fake(self.connection_class) else nullcontext():
            connection = self.connection_class(**kwargs, retry=Retry(NoBackoff(), 0))
            try:
                connection.connect()  # type: ignore[no-untyped-call]
            except BaseException:  # after its own errors alone redis-py closes it
                connection.disconnect()  # type: ignore[no-untyped-call]
                raise
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
        connection: AsyncDriverConnection = twin(**guarded(kwargs))
        connection.retry = aioredis.retry.Retry(NoBackoff(), 0)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except GeneratorExit:  # it is garbage, whose loop was closed: nothing can be awaited any more
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


def address(config: StoreConfig, rows: Settings = OPTIONS) -> RedisAddress:
    """The address that a store's settings name. Raises ``ConfigurationError`` for what cannot be right."""
    if config.resource is not None:
        pool = cast("redis.ConnectionPool", config.resource())
        return checked(config, *of_pool(pool), rows)
    return checked(config, *of_url(config, config.location), rows)


def of_pool(pool: redis.ConnectionPool) -> tuple[type[DriverConnection], dict[str, Any]]:
    """How a pool of other code connects. Its connections stay its own."""
    made_by = pool.connection_class
    if not isinstance(made_by, type):  # redis-py only calls it: fakeredis documents a function
        made_by = type(made_by(**pool.connection_kwargs))
    kwargs = {**pool.connection_kwargs, "max_connections": pool.max_connections}
    kwargs.pop("decode_responses", None)
    return made_by, kwargs


def is_fake(connection_class: type) -> bool:
    """Whether it is fakeredis's: its server lies in this process and answers at once, with no socket between."""
    return any(base.__module__.partition(".")[0] == "fakeredis" for base in connection_class.__mro__)


def _fake_class(config: StoreConfig) -> type[DriverConnection]:
    """Of the connections to a server of fakeredis that stands in the settings."""
    given, setting = config.options["server"], config.option("server")
    fakeredis = sys.modules.get("fakeredis")  # code with a server of it has imported it
    if fakeredis is None or not isinstance(given, fakeredis.FakeServer):
        raise ConfigurationError(f"{setting} is for a FakeServer of fakeredis, in tests.")
    found: type[DriverConnection] | None = getattr(fakeredis, "FakeRedisConnection", None)
    if found is None:
        raise ConfigurationError(f"{setting} needs fakeredis 2.31 or newer.")
    return found


def checked(
    config: StoreConfig, connection_class: type[DriverConnection], kwargs: dict[str, Any], rows: Settings
) -> RedisAddress:
    """The address of these keywords, over which ``OPTIONS`` win. ``rows`` are the store's own."""
    where, options = config.where, config.options
    if "server" in options:
        if "+" in config.location.partition("://")[0] or "min_replicas" in options:
            raise ConfigurationError(f"{where} is on fakeredis, which is one server: no cluster, sentinel or replicas.")
        connection_class = _fake_class(config)
    fake = is_fake(connection_class)
    if fake and find_spec("lupa") is None:
        raise ConfigurationError(f"{where} is on fakeredis, which runs no scripts here: pip install 'fakeredis[lua]'.")
    known = parameters(connection_class)
    own = rows.keys() - OF_REDIS_PY.keys()
    check_known(options, (*sorted(known), *sorted(own)), f"{config.setting('OPTIONS')} has")
    given = {**kwargs, **options}
    if config.resource is None:  # what a cache has is for other code, too
        _refuse_typos(config, kwargs.keys() - known - rows.keys() - OURS.keys() - {*_NOT_FOR_US}, rows)
    values = {name: row.default for name, row in rows.items() if row.default is not None} | given
    for name, row in rows.items():
        if name in given:
            values[name] = row.check(given[name], config.option(name))
    kwargs = {name: value for name, value in values.items() if name in known}
    if not {"driver_info", "lib_name", "lib_version"} & kwargs.keys():
        kwargs |= driver_info("driver_info" in known)
    kwargs.update(OURS)
    return RedisAddress(
        connection_class,
        kwargs,
        values["max_connections"],
        values["pool_timeout"],
        ("fakeredis" if fake else "Redis") + _place(kwargs),
        config.prefix,
        *_replicas(config, values),
    )


def _refuse_typos(config: StoreConfig, names: Iterable[str], rows: Settings) -> None:
    """A parameter of the URL that is nearly one of ours. Others that mean nothing here may be for another program.

    So are ours with more behind them: ``hosts``, ``socket_timeout_ms``. ``min_connections`` is 0.867 like one of ours.
    """
    for name in names:
        if not name.startswith(tuple(rows)) and get_close_matches(name, rows, 1, 0.87):
            raise ConfigurationError(unknown_name(f"{config.where} has in its URL", name, rows))


@cache
def driver_info(known: bool) -> dict[str, Any]:
    """What redis-py tells the server of itself: read from its package once, and not for each connection (2 ms).

    ``known``: it has such a keyword, as it has since 7.1. Before that it read it once by itself.
    """
    if not known:
        return {}
    from redis.driver_info import DriverInfo

    return {"driver_info": DriverInfo()}


def _replicas(config: StoreConfig, values: Mapping[str, Any]) -> tuple[int, float]:
    """``min_replicas`` and ``replica_timeout``, of which the second is nothing without the first."""
    minimum, seconds = values.get("min_replicas"), values.get("replica_timeout")
    setting = config.option("replica_timeout")
    if minimum is None:
        if seconds is not None:
            raise ConfigurationError(f"{setting} is for min_replicas, which is not given.")
        return 0, 0.0
    half = values["socket_timeout"] / 2
    if seconds is None:
        return minimum, min(REPLICA_TIMEOUT, half)
    if seconds > half:  # two such times may pass before an answer comes: see Stream.confirm
        raise ConfigurationError(
            f"{setting} is {seconds:g}; it has to be at most half of socket_timeout, which is {2 * half:g} s."
        )
    return minimum, seconds


def of_url(config: StoreConfig, location: str) -> tuple[type[DriverConnection], dict[str, Any]]:
    """How a URL of redis-py says to connect, the store's or one made of it; without one, its defaults."""
    if not location:
        return redis.Connection, {}
    right = f"a URL such as redis://127.0.0.1:6379/0, rediss://... (TLS) or unix:///path, where {ENCODED}"
    wrong = replace(config, location=location).wrong_location(right)
    try:
        kwargs = dict(parse_url(location))  # type: ignore[no-untyped-call]
    except ValueError:
        raise wrong from None  # its text may have the password in it
    connection_class = kwargs.pop("connection_class", redis.Connection)
    if "path" in kwargs:  # a socket's, which may have an @
        return connection_class, kwargs
    name = "" if "db" in kwargs else urlsplit(location).path.strip("/")
    url = split_location(location)
    if url.cut_short or (name and "@" in url.query):  # host and name may be parts of the password
        raise wrong
    if name:
        raise ConfigurationError(
            f"{config.setting('LOCATION')} names the database {name!r}, but the databases of Redis are numbers: "
            f"redis://127.0.0.1:6379/0."
        )
    return connection_class, kwargs


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
