"""``LOCATION`` and ``OPTIONS`` → the settings of each node, and of the quorum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qsl, urlencode

from ...core.config import StoreConfig
from ...core.errors import ConfigurationError
from ...core.location import ENCODED, split_location
from ...core.setting import Setting, check_seconds, or_none, table
from ..redis.transport.address import OPTIONS as OF_ONE_SERVER
from ..redis.transport.address import timeout_row

#: Seconds that a node which was started is left out, and the longest lease, unless OPTIONS or EXPIRE say more.
RESTART_DELAY = 60.0
#: Far below any lease, for a node that is slower does not count.
NODE_TIMEOUT = 0.25
#: Fewer nodes than this survive the loss of none.
FEWEST = 3

_FORM = "redlock://[user:password@]host:6379,host:6379,host:6379/0 (TLS: redlock+rediss://...)"
_NO_MASTER = "a node of a quorum is a server of its own, redis://host:6379; a master that fails over would vote twice."


def _check_nodes(nodes: object, setting: str) -> list[str]:
    """Of what is wrong no more is said than its type: a URL may have a password."""
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


OPTIONS = {
    **OF_ONE_SERVER,
    **table(
        Setting("nodes", or_none(_check_nodes), None, "the URL of each node, if they differ", "from `LOCATION`"),
        Setting(
            "restart_delay", or_none(partial(check_seconds, zero=True, text=True)), None,
            "how long a node has no vote after it may have forgotten locks. No lease, and no `hold_at_least`, may be "
            "longer. All processes need the same value. Use `0` only in tests, or if the nodes keep every write "
            "through a restart (`appendonly yes`, `appendfsync always`)",
            f"the larger of `EXPIRE` and {RESTART_DELAY:g} s",
        ),
        timeout_row(
            "socket_timeout", NODE_TIMEOUT,
            "seconds that the answer of one node may take. Choose it far below the shortest lease, and well above a "
            "round trip to the farthest node",
        ),
        timeout_row("socket_connect_timeout", NODE_TIMEOUT, "seconds that it may take to connect to one node"),
    ),
}  # fmt: skip


def quorum_config(config: StoreConfig) -> tuple[list[StoreConfig], float]:
    """The settings of each node, and ``restart_delay`` in seconds. Raises ``ConfigurationError``."""
    options = dict(config.options)
    nodes = OPTIONS["nodes"].check(options.pop("nodes", None), config.option("nodes"))
    delay = options.pop("restart_delay", None)
    if config.location and nodes is not None:
        raise ConfigurationError(
            f'{config.where} names its nodes twice, in LOCATION and in OPTIONS["nodes"]: leave one out.'
        )
    urls, in_url = _of_location(config) if nodes is None else (nodes, None)
    if len(urls) < FEWEST:
        raise ConfigurationError(
            f"{config.where} names {len(urls)} nodes; a quorum needs {FEWEST} or more, and an odd number is best: "
            f"{_FORM}."
        )
    seconds = OPTIONS["restart_delay"].check(in_url if delay is None else delay, config.option("restart_delay"))
    if seconds is None:
        seconds = max(RESTART_DELAY, config.expire)
    return [replace(config, location=url, options=options) for url in urls], seconds


def _of_location(config: StoreConfig) -> tuple[list[str], str | None]:
    """The nodes' URLs, and ``restart_delay`` if the query has it."""
    url = split_location(config.location)
    _, _, scheme = url.scheme.partition("+")
    if "://" not in config.location or url.hosts == [""] or scheme not in ("", "redis", "rediss") or url.cut_short:
        raise config.wrong_location(f"such as {_FORM}, where {ENCODED}")
    parameters = dict(parse_qsl(url.query, keep_blank_values=True))
    delay = parameters.pop("restart_delay", None)
    url = url._replace(query=urlencode(parameters))
    return [url.of_host(host, scheme or "redis", url.path) for host in url.hosts], delay
