"""Redis Sentinel: which server is the master now is asked anew for each connection.

The sentinels are asked in turn, the one that was right last first. The server that one names has to say that it is a
master, or the next one is asked: the first may be cut off, and not know of a failover. redis-py's ``Sentinel`` is not
used for it: it swaps sentinels in a list that threads share, so that one can get lost, and of a wrong name or password
it says that no master was found.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import redis
from redis import exceptions as driver
from redis.sentinel import SentinelConnectionPool

from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.location import ENCODED, host_and_port, split_location
from ...core.runtime import drive, now
from ...core.setting import Setting, check_known, check_mapping, table
from .transport.address import OPTIONS as OF_ONE_SERVER
from .transport.address import (
    OURS,
    AsyncDriverConnection,
    DriverConnection,
    RedisAddress,
    checked,
    driver_info,
    of_pool,
    of_url,
    parameters,
)
from .transport.errors import Misconfigured

PORT = 26379
#: Beside those of one server.
OPTIONS = {
    **OF_ONE_SERVER,
    **table(
        Setting(
            "sentinel_kwargs", check_mapping, {},
            "for the connections to the sentinels, as for redis-py's; `ssl` says whether they have TLS",
            "the master's TLS and time-outs, no password",
        )
    ),
}  # fmt: skip

_FORM = "redis+sentinel://[user:password@]host:26379,host:26379/name/0"


#: Opens a connection: in a thread it is one, in a task it will be.
_Opening: TypeAlias = Callable[[RedisAddress], Any]


class _Known:
    """What was learned last. Each change is one assignment: nothing here waits for a lock."""

    __slots__ = ("first", "master", "moved")

    def __init__(self) -> None:
        self.first: RedisAddress | None = None  #: the sentinel that named it
        self.master: tuple[str, int] | None = None
        self.moved: Callable[[], None] = _nobody


def _nobody() -> None:
    """It does not matter that the master is another one."""


@dataclass(frozen=True, kw_only=True)
class SentinelAddress(RedisAddress):
    """The master of this name, wherever it is when a connection is opened."""

    service_name: str
    sentinels: tuple[RedisAddress, ...]
    _known: _Known = field(default_factory=_Known)

    def connect(self, timeout: float | None = None) -> DriverConnection:
        until = None if timeout is None else now() + timeout

        def opening(address: RedisAddress) -> DriverConnection:
            if until is None:
                return address.connect()
            # What is left. Of that a server that was named has half: another sentinel may name its successor.
            left = max(0.001, until - now())
            return address.connect(left if address in self.sentinels else left / 2)

        connection: DriverConnection = drive(self._connect(opening))
        return connection

    async def aconnect(self) -> AsyncDriverConnection:
        connection: AsyncDriverConnection = await self._connect(RedisAddress.aconnect)
        return connection

    def follow(self, moved: Callable[[], None]) -> None:
        self._known.moved = moved

    async def _connect(self, opening: _Opening) -> Any:
        """To the master that the first sentinel names which names one. Raises redis-py's errors."""
        known, failures = self._known, list[tuple[RedisAddress, BaseException | None]]()
        tried: dict[tuple[str, int], BaseException] = {}
        for sentinel in sorted(self.sentinels, key=lambda each: each is not known.first):
            try:
                named = await self._named_by(sentinel, opening)
            except (driver.RedisError, OSError) as error:
                failures.append((sentinel, error))
                continue
            if named is None:
                failures.append((sentinel, None))
            elif named not in tried:
                try:
                    connection = await self._open(named, opening)
                except (driver.RedisError, OSError) as error:
                    tried[named] = error  # the sentinel may stand alone, and the others name its successor
                    continue
                known.first, before, known.master = sentinel, known.master, named
                if before not in (None, named):
                    known.moved()  # also connections that nothing else would end: those to a machine that is gone
                return connection
        if tried:
            raise next(iter(tried.values()))
        raise self._not_found(failures)

    async def _named_by(self, sentinel: RedisAddress, opening: _Opening) -> tuple[str, int] | None:
        """Where the master is, says this sentinel; None: it does not know."""
        connection = await _settled(opening(sentinel))
        try:
            found = await _ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service_name)
        finally:
            await _close(connection)
        return (found[0].decode(), int(found[1])) if found else None

    async def _open(self, named: tuple[str, int], opening: _Opening) -> Any:
        """A connection to this server, which has to say that it is a master."""
        kwargs = {**self.kwargs, "host": named[0], "port": named[1]}
        server = RedisAddress(
            self.connection_class, kwargs, self.max_connections, self.pool_timeout, self.name, self.prefix
        )
        connection = await _settled(opening(server))
        try:
            # HELLO, not ROLE: every user may say it.
            hello = await _ask(connection, "HELLO", "2")
            if dict(zip(hello[::2], hello[1::2], strict=False)).get(b"role") != b"master":
                raise driver.ReadOnlyError("{}:{}, which the sentinels name, is no master".format(*named))
        except BaseException:
            await _close(connection)
            raise
        return connection

    def _not_found(self, failures: list[tuple[RedisAddress, BaseException | None]]) -> driver.RedisError:
        """Why no sentinel said where the master is: all that answered have the wrong settings, or none answered."""
        wrong, silent = [], []
        for sentinel, error in failures:
            where = sentinel.name
            if error is None:
                wrong.append(f"{where} knows no master {self.service_name!r}")
            elif isinstance(error, driver.AuthenticationError | driver.NoPermissionError):
                wrong.append(f"{where} does not let us in, see OPTIONS sentinel_kwargs ({error})")
            elif isinstance(error, driver.ResponseError):
                wrong.append(f"{where} is no sentinel ({error})")
            else:
                silent.append(f"{where}: {str(error).rstrip('.') or type(error).__name__}")
        if wrong:
            return Misconfigured("cannot be found: " + "; ".join(wrong + silent))
        # No TimeoutError: what is open still works, and must not be refused because the sentinels are silent.
        return driver.ConnectionError("no sentinel answers: " + "; ".join(silent))


async def _settled(result: Any) -> Any:
    """What a call of redis-py returns: its asyncio twins return that later."""
    return await result if inspect.isawaitable(result) else result


async def _ask(connection: Any, *words: str) -> Any:
    await _settled(connection.send_command(*words))
    return await _settled(connection.read_response())


async def _close(connection: Any) -> None:
    """Without waiting for the server."""
    blocking = isinstance(connection, redis.connection.AbstractConnection)
    await _settled(connection.disconnect() if blocking else connection.disconnect(nowait=True))


# Settings -----------------------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """What the settings say of Sentinel, by a URL or by a cache."""

    sentinels: list[tuple[str, int]]
    service_name: str
    connection: tuple[type[DriverConnection], dict[str, Any]]  #: to the master
    sentinel_kwargs: Mapping[str, Any]


def sentinel_address(config: StoreConfig) -> SentinelAddress | None:
    """The address that a store's settings name by way of Sentinel; None: they do not speak of it.

    Raises ``ConfigurationError`` for what cannot be right.
    """
    given = _of_cache(config) if config.resource is not None else _of_location(config)
    if given is None:
        return None
    master = checked(config, *given.connection, OPTIONS)
    sentinels = tuple(_sentinel(master, node, given, config) for node in given.sentinels)
    places = ", ".join(f"{host}:{port}" for host, port in given.sentinels)
    named = {**vars(master), "name": f"Redis master {given.service_name!r} (Sentinel at {places})"}
    return SentinelAddress(**named, service_name=given.service_name, sentinels=sentinels)


def _of_cache(config: StoreConfig) -> _Given | None:
    """A django-redis cache whose pool asks sentinels."""
    pool = config.resource() if config.resource is not None else None
    if not isinstance(pool, SentinelConnectionPool):
        return None
    managed, kwargs = of_pool(pool)
    tls = issubclass(managed, redis.SSLConnection)
    manager = pool.sentinel_manager
    nodes = [client.connection_pool.connection_kwargs for client in manager.sentinels]
    known = parameters(redis.SSLConnection if manager.sentinel_kwargs.get("ssl") else redis.Connection) | {"ssl"}
    return _Given(
        [(node["host"], int(node["port"])) for node in nodes],
        pool.service_name,
        (redis.SSLConnection if tls else redis.Connection, kwargs),
        {"ssl": False, **{name: value for name, value in manager.sentinel_kwargs.items() if name in known}},
    )


def _of_location(config: StoreConfig) -> _Given | None:
    url = split_location(config.location)
    if url.scheme not in ("redis+sentinel", "rediss+sentinel"):
        if "sentinel_kwargs" in config.options:
            raise ConfigurationError(f"{config.setting('OPTIONS')} has sentinel_kwargs, which is for {_FORM}.")
        return None
    name, _, db = url.path.partition("/")
    if url.cut_short:
        raise config.wrong_location(f"such as {_FORM}, where {ENCODED}")
    setting = config.setting("LOCATION")
    if url.hosts == [""] or not name:
        raise ConfigurationError(
            f"{setting} names {'no sentinel' if url.hosts == [''] else 'no master'}; it has to be such as {_FORM} "
            f"(name: what the sentinels call the master)."
        )
    sentinels = [_node(host, setting) for host in url.hosts]
    master = of_url(config, url.of_host("sentinel", url.scheme.removesuffix("+sentinel"), db))
    own = OPTIONS["sentinel_kwargs"].check(config.options.get("sentinel_kwargs", {}), config.option("sentinel_kwargs"))
    return _Given(sentinels, unquote(name), master, own)


def _node(given: str, setting: str) -> tuple[str, int]:
    node = host_and_port(given, PORT)
    if node is None:
        raise ConfigurationError(f"{setting} names the sentinel {given!r}; it has to be a host and a port.")
    return node


def _sentinel(master: RedisAddress, node: tuple[str, int], given: _Given, config: StoreConfig) -> RedisAddress:
    """One sentinel. Unless ``sentinel_kwargs`` say otherwise: with the master's TLS, and its time shared by all."""
    own = dict(given.sentinel_kwargs)
    tls = own.pop("ssl", issubclass(master.connection_class, redis.SSLConnection))
    connection_class = redis.SSLConnection if tls else redis.Connection
    known = parameters(connection_class)
    check_known(own, (*sorted(known), "ssl"), f"{config.option('sentinel_kwargs')} has")
    share = master.kwargs["socket_connect_timeout"] / len(given.sentinels)
    kwargs = {name: value for name, value in master.kwargs.items() if name.startswith(("socket_", "ssl_"))}
    kwargs |= {
        "socket_timeout": share,
        "socket_connect_timeout": share,
        **driver_info("driver_info" in known),
        **own,
        "host": node[0],
        "port": node[1],
    }
    kwargs = {name: value for name, value in kwargs.items() if name in known} | OURS
    return RedisAddress(connection_class, kwargs, 1, 0.0, f"{node[0]}:{node[1]}", master.prefix)
