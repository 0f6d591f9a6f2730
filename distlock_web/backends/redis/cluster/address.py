"""``redis+cluster://user:password@host:7000,host:7001/`` → some nodes of the cluster, and how to connect to each."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from ....core.config import StoreConfig
from ....core.errors import ConfigurationError
from ....core.location import without_credentials
from ..transport.address import RedisAddress, checked, of_url
from .redirects import NodeAddress

#: Options of a connection that are each node's own here.
_OF_ONE_SERVER = ("host", "port", "path", "db")


def cluster_address(config: StoreConfig) -> tuple[RedisAddress, list[NodeAddress]]:
    """How to connect to each node, and those nodes that are asked for the others. ``ConfigurationError``: see there."""
    where = f"DISTLOCK[{config.alias!r}]"
    for name in _OF_ONE_SERVER:
        if config.options.get(name):
            raise ConfigurationError(
                f'{where}["OPTIONS"] has {name!r}, which is for one server: the nodes of a cluster are in LOCATION.'
            )
    options = {name: value for name, value in config.options.items() if name not in _OF_ONE_SERVER}
    urls = _urls(config.location, where)
    found = [of_url(url, where) for url in urls]
    for _, kwargs in found:
        if kwargs.get("db") or "path" in kwargs:
            shown = without_credentials(config.location)
            raise ConfigurationError(
                f'{where}["LOCATION"] is {shown!r}; it has to be redis+cluster://host:7000,host:7001/ (or '
                f"rediss+cluster://): a cluster has no numbered databases and no sockets."
            )
    seeds = [NodeAddress(kwargs.get("host", "localhost"), int(kwargs.get("port", 6379))) for _, kwargs in found]
    return checked(config, *found[0], options), seeds


def address_of(node: NodeAddress, base: RedisAddress) -> RedisAddress:
    """The address of one node."""
    kwargs = {**base.kwargs, "host": node.host, "port": node.port}
    return replace(base, kwargs=kwargs, name=f"The node {node} of the Redis Cluster", clustered=True)


def _urls(location: str, where: str) -> list[str]:
    """A URL of a single server for each of the hosts."""
    parts = urlsplit(location)
    scheme = parts.scheme.removesuffix("+cluster") or "redis"
    credentials, at, hosts = parts.netloc.rpartition("@")
    named = [host for host in hosts.split(",") if host]
    if location and not named:
        raise ConfigurationError(
            f'{where}["LOCATION"] is {without_credentials(location)!r}, which names no node: it has to be '
            f"redis+cluster://host:7000,host:7001/."
        )
    rest = parts.path + (f"?{parts.query}" if parts.query else "")
    return [f"{scheme}://{credentials}{at}{host}{rest}" for host in named] or [""]
