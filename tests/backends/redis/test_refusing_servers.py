"""Servers that refuse: each by its own name, with what to do about it, and in a bounded time."""

from __future__ import annotations

import inspect
import re
import socket
from collections.abc import Callable, Iterator

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, DistLockError, configure, lock
from distlock_web.core.registry import registry
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer, free_port
from tests.support.modes import in_both_modes
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY, refused, the_lock
from tests.support.waiting import eventually

MakeRedis = Callable[..., RedisServer]


def with_a_password(make: MakeRedis, user: str = "") -> str:
    return make("--requirepass", "secret").url.replace("://", f"://{user}")


#: What is asked for, the error, and words of it.
REFUSALS: dict[str, tuple[Callable[[MakeRedis], str], type[DistLockError], tuple[str, ...]]] = {
    "no password": (with_a_password, ConfigurationError, ("wants a password", "redis://:password@host")),
    "a wrong one": (
        lambda make: with_a_password(make, ":secret-not@"), ConfigurationError, ("not accept this user name and pass",)
    ),
    "a wrong name": (
        lambda make: with_a_password(make, "nobody:secret@"), ConfigurationError, ("does not accept this user name",)
    ),
    "one for a server that has none": (
        lambda make: make().url.replace("://", "://:secret@"), ConfigurationError, ("has no password",)
    ),
    "no such database": (
        lambda make: f"redis://127.0.0.1:{make().port}/4711", ConfigurationError, ("has no such database", "LOCATION")
    ),
    "no such host": (
        lambda make: "redis://no-such-host.invalid:6379", BackendUnavailable, ("no-such-host.invalid", "not answer")
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
@in_both_modes
async def test_a_server_says_no(harness: Harness, make_redis: MakeRedis, what: str) -> None:
    url, kind, words = REFUSALS[what]
    await refused(harness, url(make_redis), kind, *words)


@in_both_modes
async def test_a_replica(harness: Harness, make_redis: MakeRedis) -> None:
    master = make_redis("--repl-diskless-sync-delay", "0")
    replica = make_redis("--replicaof", "127.0.0.1", str(master.port))
    with redis.Redis.from_url(replica.url) as client:
        eventually(lambda: client.info("replication")["master_link_status"] == "up", "the replica is in step")
    await refused(harness, replica.url, BackendUnavailable, "is a replica", "accepts no writes")


@in_both_modes
async def test_a_master_that_is_demoted_under_a_lease(harness: Harness, make_redis: MakeRedis) -> None:
    server = make_redis()
    harness.store = configure({"default": {"LOCATION": server.url}}).store("default")
    lease = await harness.acquire(the_lock())
    with redis.Redis.from_url(server.url) as client:
        client.replicaof("127.0.0.1", str(free_port()))  # nobody: who copies an empty server has no lock
        with pytest.raises(BackendUnavailable, match="replica"):
            await harness.extend(lease, 1000)  # within its first ms its own expire writes nothing
        # The cancel that is put off closes every connection to it, too: perhaps that of the second try.
        with pytest.raises(BackendUnavailable):
            await harness.release(lease)
        client.replicaof("no", "one")


@in_both_modes
async def test_a_server_that_is_loading(harness: Harness, proxy: Proxy) -> None:
    proxy.answer(b"-LOADING Redis is loading the dataset in memory\r\n")
    await refused(harness, proxy.url, BackendUnavailable, "still loading its data")
    harness.store = configure({"default": {"LOCATION": proxy.url}}).store("default")
    proxy.answer(None)
    await harness.release(await harness.acquire(the_lock()))


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port on which connections are never accepted: its backlog is full, as behind a firewall that drops."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for client in crowd:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for client in crowd:
            client.close()


@pytest.mark.slow
@in_both_modes
async def test_a_host_that_drops_everything(harness: Harness, deaf_port: int) -> None:
    await refused(harness, f"redis://127.0.0.1:{deaf_port}", BackendUnavailable, "does not answer", "imeout")


@in_both_modes
async def test_something_that_is_no_redis(harness: Harness, proxy: Proxy) -> None:
    proxy.answer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await refused(harness, proxy.url, BackendUnavailable, f"Redis at 127.0.0.1:{proxy.port}")


@pytest.mark.parametrize("location", ["localhost:6379", "redis://127.0.0.1:port"])
def test_a_location_that_is_no_address(location: str) -> None:
    configure({"default": {"LOCATION": location}})
    with pytest.raises(ConfigurationError, match=re.escape("""DISTLOCK['default']["LOCATION"]""")):
        lock(KEY).acquire()


@pytest.mark.parametrize(
    "typo",
    ["socket_timeuot", "user_name", "max_conections", "min_replica", "passwort", "pool_timeuot", "ssl_ca_cert"],
)
def test_a_typo_in_a_url_does_not_become_a_default(typo: str) -> None:
    configure({"default": {"LOCATION": f"redis://127.0.0.1:1?{typo}=1"}})
    with pytest.raises(ConfigurationError, match=rf"has in its URL '{typo}', which does not exist\. Did you mean '"):
        lock(KEY).acquire()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_what_redis_py_or_another_program_has_in_a_url_is_left_to_them(scheme: str) -> None:
    classes = (redis.Redis, redis.BlockingConnectionPool, redis.SSLConnection, redis.UnixDomainSocketConnection)
    inits = (vars(base)["__init__"] for each in classes for base in each.__mro__ if "__init__" in vars(base))
    known = {name for init in inits for name in inspect.signature(init).parameters}
    assert known >= {"decode_responses", "timeout", "ssl_password"}
    checked = {name for name in known if re.match(r"self|connection_class|ssl_(c|keyfile|.*_flags)", name)}
    query = "&".join(f"{name}=1" for name in sorted(known - checked | {"shop_color", "timeout_of_shop"}))
    configure({"default": {"LOCATION": f"{scheme}://127.0.0.1:1?{query}"}})
    assert registry().store("default").backend


@pytest.mark.parametrize(
    "name", ["min_connections", "hosts", "ports", "servers", "socket_timeout_ms", "max_connections_per_node", "dbname"]
)
def test_a_word_near_one_of_ours_is_another_programs(name: str) -> None:
    configure({"default": {"LOCATION": f"redis://127.0.0.1:1?{name}=1"}})
    assert registry().store("default").backend


@in_both_modes
async def test_too_many_clients(harness: Harness, make_redis: MakeRedis) -> None:
    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        client.ping()
        client.config_set("maxclients", 1)
        await refused(harness, server.url, BackendUnavailable, "does not answer")
