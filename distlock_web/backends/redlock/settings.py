"""``LOCATION`` and ``OPTIONS`` → the settings of each node, and of the quorum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.location import without_credentials
from ...core.setting import check_seconds

#: Seconds that one node's answer may take: far below any lease, for a node that is slower does not count.
NODE_TIMEOUT = 0.25
#: Seconds that a node which was started is left out, and the longest lease, unless OPTIONS or EXPIRE say more.
RESTART_DELAY = 60.0
#: Fewer nodes than this survive the loss of none.
FEWEST = 3

_FORM = "redlock://[user:password@]host:6379,host:6379,host:6379/0 (TLS: redlock+rediss://...)"
_NO_MASTER = "a node of a quorum is a server of its own, redis://host:6379; a master that fails over would vote twice."


def quorum_config(config: StoreConfig) -> tuple[list[StoreConfig], float]:
    """The settings of each node, and ``restart_delay`` in seconds. Raises ``ConfigurationError``."""
    where = f"DISTLOCK[{config.alias!r}]"
    options = dict(config.options)
    nodes, delay = options.pop("nodes", None), options.pop("restart_delay", None)
    if config.location and nodes is not None:
        raise ConfigurationError(f'{where} names its nodes twice, in LOCATION and in OPTIONS["nodes"]: leave one out.')
    if nodes is None:
        urls, given = _of_location(config.location, where)
        delay = given if delay is None else delay
    else:
        urls = _of_nodes(nodes, f'{where}["OPTIONS"]["nodes"]')
    if len(urls) < FEWEST:
        raise ConfigurationError(
            f"{where} names {len(urls)} nodes; a quorum needs {FEWEST} or more, and an odd number is best: {_FORM}."
        )
    setting = f'{where}["OPTIONS"]["restart_delay"]'
    seconds = (
        max(RESTART_DELAY, config.expire) if delay is None else check_seconds(delay, setting, zero=True, text=True)
    )
    return [replace(config, location=url, options=_with_timeouts(url, options)) for url in urls], seconds


def _of_nodes(nodes: object, setting: str) -> list[str]:
    """The URLs of ``OPTIONS["nodes"]``. Of what is wrong no more is said than its type: a URL may have a password."""
    if isinstance(nodes, str) or not isinstance(nodes, Iterable):
        raise ConfigurationError(f"{setting} is of type {type(nodes).__name__}; it has to be a list of redis:// URLs.")
    urls = []
    for url in nodes:
        if not isinstance(url, str):
            raise ConfigurationError(
                f"{setting} has an item of type {type(url).__name__}; each has to be a redis:// URL."
            )
        if url.partition("://")[0].endswith("+sentinel"):
            raise ConfigurationError(f"{setting} names a node by its sentinels: {_NO_MASTER}")
        urls.append(url)
    return urls


def _of_location(location: str, where: str) -> tuple[list[str], object]:
    """The nodes' URLs, and ``restart_delay`` if the query has it."""
    scheme, mark, rest = location.partition("://")
    _, _, node_scheme = scheme.partition("+")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    if not mark or not hosts or node_scheme not in ("", "redis", "rediss"):
        raise ConfigurationError(
            f'{where}["LOCATION"] is {without_credentials(location)!r}; it has to be such as {_FORM}.'
        )
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    delay = parameters.pop("restart_delay", None)
    tail = f"/{path}" + (f"?{urlencode(parameters)}" if parameters else "")
    return [f"{node_scheme or 'redis'}://{credentials}{at}{host}{tail}" for host in hosts.split(",")], delay


def _with_timeouts(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with our time-outs, where neither they nor the node's URL say any."""
    given = {name for name, _ in parse_qsl(url.partition("?")[2])}
    defaults = {name: NODE_TIMEOUT for name in ("socket_timeout", "socket_connect_timeout") if name not in given}
    return {**defaults, **options}
