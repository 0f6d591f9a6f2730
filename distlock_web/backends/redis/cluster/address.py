"""``redis+cluster://user:password@host:7000,host:7001/`` → some nodes of the cluster, and how to connect to each."""

from __future__ import annotations

from dataclasses import replace

from ....core.config import StoreConfig
from ....core.errors import ConfigurationError
from ....core.location import ENCODED, split_location
from ..transport.address import OPTIONS as OF_ONE_SERVER
from ..transport.address import RedisAddress, checked, of_url
from .redirects import NodeAddress

#: What is each node's own here.
_ADDRESSES = ("host", "port", "path", "db")
OPTIONS = {name: row for name, row in OF_ONE_SERVER.items() if name not in _ADDRESSES}


def cluster_address(config: StoreConfig) -> tuple[RedisAddress, list[NodeAddress]]:
    """How to connect to each node, and those nodes that are asked for the others. ``ConfigurationError``: see there."""
    for name in _ADDRESSES:
        if config.options.get(name):
            raise ConfigurationError(
                f"{config.setting('OPTIONS')} has {name!r}, which is for one server: the nodes of a cluster are in "
                f"LOCATION."
            )
    options = {name: value for name, value in config.options.items() if name not in _ADDRESSES}
    found = [of_url(config, url) for url in _urls(config)]
    for _, kwargs in found:
        if kwargs.get("db") or "path" in kwargs:
            raise config.wrong_location(
                "redis+cluster://host:7000,host:7001/ (or rediss+cluster://): a cluster has no numbered databases and "
                "no sockets"
            )
    seeds = [NodeAddress(kwargs.get("host", "localhost"), int(kwargs.get("port", 6379))) for _, kwargs in found]
    return checked(replace(config, options=options), *found[0], OPTIONS), seeds


def address_of(node: NodeAddress, base: RedisAddress) -> RedisAddress:
    """The address of one node."""
    kwargs = {**base.kwargs, "host": node.host, "port": node.port}
    return replace(base, kwargs=kwargs, name=f"The node {node} of the Redis Cluster", clustered=True)


def _urls(config: StoreConfig) -> list[str]:
    """A URL of a single server for each of the hosts."""
    if not config.location:
        return [""]
    url = split_location(config.location)
    form = "such as redis+cluster://[user:password@]host:7000,host:7001/"
    if url.cut_short:
        raise config.wrong_location(f"{form}, where {ENCODED}")
    hosts = [host for host in url.hosts if host]
    if not hosts:
        raise config.wrong_location(f"{form}: it names no node")
    return [url.of_host(host, url.scheme.removesuffix("+cluster"), url.path) for host in hosts]
