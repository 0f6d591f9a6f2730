"""Servers that refuse: each by its own name, with what to do about it, and in a bounded time."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, DistLockError, configure, lock
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer, free_port
from tests.support.modes import in_both_modes
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY, NAME, the_lock
from tests.support.waiting import SLACK, eventually

MakeRedis = Callable[..., RedisServer]

#: Seconds after which every refusal has come: two tries and the undo, each may connect and sign in.
BOUND = 6.0 + SLACK


async def refused(harness: Harness, url: str, kind: type[DistLockError], *words: str, **options: object) -> str:
    """Taking a lock at this address is refused with this error, which says these words, and in time. Its text."""
    store = configure({"default": {"LOCATION": url, "OPTIONS": options}}).store("default")
    harness.store = store
    begun = now()
    with pytest.raises(DistLockError) as caught:
        await harness.acquire(the_lock(wait=60))
    assert type(caught.value) is kind, caught.value
    for word in words:
        assert word in str(caught.value)
    assert "secret" not in str(caught.value), "a password in a message ends in a log"
    assert now() - begun < BOUND
    return str(caught.value)


@in_both_modes
async def test_a_password_is_wanted(harness: Harness, make_redis: MakeRedis) -> None:
    server = make_redis("--requirepass", "secret")
    await refused(harness, server.url, ConfigurationError, "wants a password", "redis://:password@host")


@in_both_modes
async def test_the_password_is_wrong(harness: Harness, make_redis: MakeRedis) -> None:
    server = make_redis("--requirepass", "secret")
    for url in (f"redis://:secret-not@127.0.0.1:{server.port}", f"redis://nobody:secret@127.0.0.1:{server.port}"):
        await refused(harness, url, ConfigurationError, "does not accept this user name and password")


@in_both_modes
async def test_a_password_for_a_server_that_has_none(harness: Harness, redis_server: RedisServer) -> None:
    url = f"redis://:secret@127.0.0.1:{redis_server.port}"
    await refused(harness, url, ConfigurationError, "has no password")


@in_both_modes
async def test_a_database_that_does_not_exist(harness: Harness, redis_server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/4711"
    await refused(harness, url, ConfigurationError, "has no such database", "LOCATION")


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
            await harness.extend(lease)
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


@in_both_modes
async def test_a_foreign_key_where_the_lock_should_be(
    harness: Harness, redis_url: str, redis_client: redis.Redis
) -> None:
    redis_client.set(NAME, "somebody's own")
    await refused(harness, redis_url, ConfigurationError, "a key of another type", "PREFIX")
    assert redis_client.get(NAME) == "somebody's own"


@in_both_modes
async def test_a_host_that_does_not_exist(harness: Harness) -> None:
    await refused(
        harness, "redis://no-such-host.invalid:6379", BackendUnavailable, "no-such-host.invalid", "not answer"
    )


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


@in_both_modes
async def test_too_many_clients(harness: Harness, make_redis: MakeRedis) -> None:
    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        client.ping()
        client.config_set("maxclients", 1)
        await refused(harness, server.url, BackendUnavailable, "does not answer")
