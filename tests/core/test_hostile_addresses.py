"""No message shows a part of a password, also where the password should have been percent-encoded."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from distlock_web import ConfigurationError
from distlock_web.backends.redis.cluster.address import cluster_address
from distlock_web.backends.redis.sentinel import sentinel_address
from distlock_web.backends.redis.transport.address import address as redis_address
from distlock_web.backends.redlock.settings import quorum_config
from distlock_web.backends.sql.address import address as sql_address
from distlock_web.backends.zookeeper.address import address as zookeeper_address
from distlock_web.core.config import StoreConfig
from distlock_web.core.location import without_credentials

#: Of a password: the first two may be taken for a host and its port.
HOST, PORT, WORD = "zebra", "61234", "quokka"
SEPARATORS = ["?", "#", "/", "@", ":", ",", "[", "]", "&", "%", "=", "?a=", "/?a=", "#a=", "&a=", "?x&a=", "==", "//"]
SEPARATORS += ["?hostname=", "/?a_file=", "?password="]  # words of drivers: their values may have an @

#: By the scheme of a ``LOCATION``: what stands behind the ``@``, the backend, and the addresses that are made of it.
STORES: dict[str, tuple[str, str, Callable[[StoreConfig], object]]] = {
    "redis": ("h:1/0", "redis", redis_address),
    "rediss": ("h", "redis", redis_address),
    "redis+cluster": ("h:1,i:2/", "redis", cluster_address),
    "redis+sentinel": ("h:1,i:2/shop/0", "redis", sentinel_address),
    "redlock": ("h:1,i:2,j:3/0", "redlock", lambda config: [*map(redis_address, quorum_config(config)[0])]),
    "postgresql": ("h:1/shop", "sql", lambda config: sql_address(config).name),
    "mysql": ("h/shop", "sql", lambda config: sql_address(config).name),
    "mariadb": ("h:1/shop?charset=utf8mb4", "sql", lambda config: sql_address(config).name),
    "zookeeper": ("h:1,i:2/locks", "zookeeper", zookeeper_address),
}


def passwords() -> Iterator[str]:
    for first, separator in itertools.product([HOST, PORT], SEPARATORS):
        yield f"{first}{separator}{WORD}"
        for second in SEPARATORS:
            yield f"{first}{separator}{PORT}{second}{WORD}"


def said_of(config: StoreConfig, addresses: Callable[[StoreConfig], object]) -> str:
    """What is refused, or what later messages say of the servers."""
    try:
        return f"{addresses(config)!r} {config!r}"
    except ConfigurationError as error:
        return "".join(traceback.format_exception_only(error)) + str(error.__cause__ or "")


@pytest.mark.parametrize("scheme", STORES)
def test_no_part_of_a_password_is_shown(scheme: str) -> None:
    """``redis://user:1234?a=b@host`` was the server ``user:1234``, by every message."""
    hosts, backend, addresses = STORES[scheme]
    told = {}
    for user, password in itertools.product(["", "me", "m@e", "m/e"], passwords()):
        location = f"{scheme}://{user}:{password}@{hosts}"
        config = StoreConfig("default", backend=backend, location=location)
        for said in (said_of(config, addresses), without_credentials(location)):
            if any(part in said for part in (HOST, PORT, WORD)):
                told[location] = said
    assert not told


@pytest.mark.parametrize("scheme", STORES)
def test_a_password_that_is_encoded_is_taken(scheme: str) -> None:
    hosts, backend, addresses = STORES[scheme]
    password = quote(f"{HOST}?a={PORT}/#@{WORD}", safe="")
    config = StoreConfig("default", backend=backend, location=f"{scheme}://me:{password}@{hosts}")
    addresses(config)


@pytest.mark.parametrize(
    ("scheme", "place"),
    [("redis", "h:1/0"), ("redis+cluster", "h:1,i:2/0"), ("redlock", "h:1,i:2,j:3/0")]
    + [("redis+sentinel", f"h:1,i:2/shop{db}") for db in ("", "/", "/0")],
)
def test_a_value_behind_a_password_and_a_path_may_have_an_at(scheme: str, place: str) -> None:
    _, backend, addresses = STORES[scheme]
    addresses(StoreConfig("default", backend=backend, location=f"{scheme}://me:x@{place}?client_name=web@host"))


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
@pytest.mark.parametrize("place", ["h/shop", "h:1/shop", "me@h:1/shop", "me:x@h/shop"])
@pytest.mark.parametrize("query", [f"password={HOST}@{WORD}", f"ssl_ca=a@b&password={WORD}"])
def test_a_password_in_the_query_is_not_taken_for_a_host(scheme: str, place: str, query: str) -> None:
    _, backend, addresses = STORES[scheme]
    location = f"{scheme}://{place}?{query}"
    said = said_of(StoreConfig("default", backend=backend, location=location), addresses)
    assert HOST not in said
    assert WORD not in said
