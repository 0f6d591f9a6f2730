"""Nodes that are gone, that refuse, that hang, that come back: what a lock costs then, and what stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, Lease, LeaseLost, configure, lock
from distlock_web.backends.redlock.scripts import INSPECT
from distlock_web.core.backend import Busy, Granted
from distlock_web.core.registry import Store, registry
from distlock_web.core.runtime import THREADS, drive, now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.proxy import Proxy
from tests.support.stores.redlock import left_on
from tests.support.waiting import LONG, SLACK, eventually

NAME = "disLock:order:7"
Quorum = tuple[list[RedisServer], Harness]
#: How a node fails, and how it comes back.
FAILURES = {
    "refuses": (RedisServer.kill, RedisServer.start),
    "hangs": (RedisServer.pause, RedisServer.resume),
}


@pytest.fixture(params=sorted(FAILURES))
def failure(request: pytest.FixtureRequest) -> tuple[Callable[[RedisServer], None], Callable[[RedisServer], None]]:
    return FAILURES[request.param]


async def cycle(harness: Harness, **options: Any) -> float:
    """Take and release a lock. Seconds."""
    begun = now()
    async with harness.inside(lock("order:7", **{"expire": 30, **options})):
        pass
    return now() - begun


def test_two_of_five_may_be_gone(quorum: Quorum, failure: Any) -> None:
    servers, harness = quorum
    fail, come_back = failure

    async def case() -> None:
        await cycle(harness)
        async with harness.inside(lock("held", expire=30)) as lease:
            for server in servers[:2]:
                fail(server)
            slow = [seconds for _ in range(60) if (seconds := await cycle(harness)) >= node_timeout(harness)]
            assert len(slow) <= 6, "its time-out, once for each node at most: not each time"
            await harness.extend(lease)
            assert [line.name for line in await harness.port.inspect()] == ["disLock:held"]
        for server in servers[:2]:
            come_back(server)
        await harness.until(lambda: _all_vote(harness))
        async with harness.inside(lock("held", expire=30, wait=SLACK)):
            pass

    harness.run(case())
    eventually(lambda: left_on(servers) == {}, "what a node had when it failed is given back", SLACK)


async def _all_vote(harness: Harness) -> bool:
    return all(not node.outage.silent for node in harness.store.backend._nodes)  # type: ignore[attr-defined]


def test_three_of_five_refuse_in_bounded_time_and_keep_nothing(quorum: Quorum, failure: Any) -> None:
    servers, harness = quorum
    fail, come_back = failure

    async def case() -> None:
        await cycle(harness)
        for server in servers[2:]:
            fail(server)
        for _ in range(3):
            begun = now()
            with pytest.raises(BackendUnavailable, match=r"2 of 5 nodes answered, 3 are needed: Redis at 127.0.0.1:"):
                await harness.acquire(lock("order:7", expire=30))
            assert now() - begun < SLACK
        assert left_on(servers[:2]) == {}
        begun = now()
        for _ in range(20):
            with pytest.raises(BackendUnavailable):
                await harness.acquire(lock("order:7", expire=30))
        assert now() - begun < 20 * node_timeout(harness), "it is known that they are gone"
        for server in servers[2:]:
            come_back(server)
        await harness.until(lambda: _all_vote(harness))

    harness.run(case())
    eventually(lambda: left_on(servers) == {}, "nor what reached a node that hung")


def node_timeout(harness: Harness) -> float:
    return float(harness.store.backend._nodes[0].timeout)  # type: ignore[attr-defined]


async def held_everywhere(servers: list[RedisServer], harness: Harness) -> Lease:
    """A lease that also those nodes have given that were not waited for."""
    lease = await harness.acquire(lock("order:7", expire=30))
    await harness.until(lambda: _all_have_it(servers, harness))
    return lease


async def _all_have_it(servers: list[RedisServer], harness: Harness) -> bool:
    await harness.port.inspect()  # a thread reads what is left with its next request
    return len(left_on(servers)) == len(servers)


def test_a_lease_that_a_majority_has_lost_is_lost(quorum: Quorum) -> None:
    servers, harness = quorum

    async def case() -> None:
        lease = await held_everywhere(servers, harness)
        for server in servers[:2]:
            _flush(server)
        await harness.extend(lease)
        lease.raise_if_lost()
        for server in servers[:3]:
            _flush(server)
        with pytest.raises(LeaseLost):
            await harness.extend(lease)

    harness.run(case())


def test_a_renewal_does_not_wait_for_nodes_that_are_known_to_hang(quorum: Quorum) -> None:
    """It connected to one after the other before it read an answer, and a short lease ended meanwhile."""
    servers, harness = quorum

    async def case() -> None:
        lease = await held_everywhere(servers, harness)
        claims = [hold.claim for hold in scope_of(lease).holds]
        for server in servers[:2]:
            server.pause()
        seconds = []
        for _ in range(4):
            begun = now()
            assert drive(harness.store.renewal_port().extend(claims)) == [None]
            seconds.append(now() - begun)
        assert min(seconds) < node_timeout(harness)
        for server in servers[:2]:
            server.resume()
        await harness.release(lease)

    harness.run(case())


def _flush(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


@pytest.fixture
def slow(own_nodes: list[RedisServer]) -> Iterator[Proxy]:
    """In front of the fifth node of the default store."""
    with Proxy(own_nodes[4].port) as proxy:
        hosts = ",".join(f"127.0.0.1:{port}" for port in (*(server.port for server in own_nodes[:4]), proxy.port))
        options = {"restart_delay": 0, "socket_timeout": SLACK, "socket_connect_timeout": SLACK}
        made = configure({"default": {"LOCATION": f"redlock://{hosts}/0", "OPTIONS": options}})
        yield proxy
        eventually(lambda: left_on(own_nodes) == {}, "nothing stays on the slow one")
        made.close()


def test_a_slow_node_costs_nothing_beside_its_own_requests(
    own_nodes: list[RedisServer], slow: Proxy, mode: Any
) -> None:
    """It was taken for one that had not heard of the release: a thread asked it again after each."""
    harness: Harness = mode(registry().store("default"))

    async def case() -> None:
        await cycle(harness)
        slow.delay = 0.1
        if harness.runtime is THREADS:  # the node says so when nobody waits for it any more; a task waits
            with redis.Redis.from_url(own_nodes[4].url) as client:
                client.script_flush()
        before, started = set(threading.enumerate()), set[str]()
        for _ in range(20):
            async with harness.inside(lock("order:7", expire=30)):
                await harness.sleep(0.01)
            started |= {thread.name for thread in set(threading.enumerate()) - before}
        assert started <= {"distlock-close"}, "of a store that another test has left"

    harness.run(case())


def test_a_lease_that_a_silent_node_may_have_still_is_not_lost(quorum: Quorum) -> None:
    """Two have it, two have lost it, and the fifth does not answer: that is no majority, and no loss."""
    servers, harness = quorum

    async def case() -> None:
        lease = await held_everywhere(servers, harness)
        _flush(servers[3])
        _flush(servers[4])
        servers[2].pause()
        try:
            with pytest.raises(BackendUnavailable):
                await harness.extend(lease)
            assert lease.state != "lost"
        finally:
            servers[2].resume()

        async def extended() -> bool:
            try:
                await harness.extend(lease)
            except BackendUnavailable:
                return False
            return True

        await harness.until(extended)
        await harness.release(lease)

    harness.run(case())


def test_a_vote_that_was_open_when_a_node_was_told_who_it_is_is_taken_back(
    own_nodes: list[RedisServer], open_store: Any, mode: Any
) -> None:
    """All are asked once more then. The node is silent by that time, so the second question is not sent there."""
    servers = own_nodes[:3]
    harness: Harness = mode(open_store(servers))

    async def case() -> None:
        assert isinstance(await harness.port.acquire(claim(expire=300, name="disLock:order:7"), 0), Granted)
        _flush(servers[1])
        with redis.Redis.from_url(servers[2].url) as client:
            client.delete("disLock:order:7")
            client.config_resetstat()
        servers[2].pause()
        try:
            assert isinstance(await harness.port.acquire(claim(expire=300, name="disLock:order:7"), 0), Busy)
        finally:
            servers[2].resume()
        await harness.until(lambda: _is_asked(servers[2]))
        await harness.until(lambda: _is_free(servers[2]))

    harness.run(case())


async def _is_asked(server: RedisServer) -> bool:
    with redis.Redis.from_url(server.url) as client:
        return "cmdstat_evalsha" in client.info("commandstats")


async def _is_free(server: RedisServer) -> bool:
    return left_on([server]) == {}


def test_what_a_node_that_is_down_was_never_asked_is_not_undone_there(quorum: Quorum) -> None:
    """Each refused call of a task left a request in memory, and the node got all of them when it came back."""
    servers, harness = quorum
    backend: Any = harness.store.backend
    node = backend._nodes[0]

    async def case() -> None:
        assert isinstance(await harness.port.acquire(claim(name="disLock:order:7"), 0), Granted)
        servers[0].kill()
        for _ in range(30):
            assert isinstance(await harness.port.acquire(claim(name="disLock:order:7"), 0), Busy)
        assert len(node.outage._postponed) < 5, "but what was asked when it went"

    harness.run(case())


def test_what_a_node_that_refuses_us_was_never_asked_is_not_undone_there(
    own_nodes: list[RedisServer], mode: Any
) -> None:
    """Each lock that was busy left a request in memory for as long as a lease: the node had refused the connection."""
    urls = [server.url for server in own_nodes]
    urls[0] = urls[0].replace("//", "//:wrong@")
    made = configure({"default": {"BACKEND": "redlock", "OPTIONS": {"nodes": urls, "restart_delay": 0}}})
    harness: Harness = mode(made.store("default"))
    backend: Any = harness.store.backend

    async def case() -> None:
        assert isinstance(await harness.port.acquire(claim(name="disLock:order:7"), 0), Granted)
        for _ in range(10):
            assert isinstance(await harness.port.acquire(claim(name="disLock:order:7"), 0), Busy)
        assert len(backend._nodes[0].outage._postponed) == 0

    harness.run(case())
    made.close()


def test_a_foreign_key_ends_no_other_lease(quorum: Quorum) -> None:
    """The script is one for all leases of a renewal, and ended there."""
    servers, harness = quorum

    async def case() -> None:
        claims = [claim(name=f"disLock:{number}", expire=300) for number in range(4)]
        for each in claims:
            assert isinstance(await harness.port.acquire(each, 0), Granted)
        for server in servers:
            with redis.Redis.from_url(server.url) as client:
                client.delete("disLock:1", "disLock:2")
                client.hset("disLock:1", "x", "y")
                client.set("disLock:2", "a cart")
        assert await harness.port.extend(claims) == [None, "taken", "taken", None]

    harness.run(case())


def test_full_nodes_release_by_force_and_remember_a_cooldown(quorum: Quorum) -> None:
    """A server that is full refuses a SET, but not behind a command that frees memory."""
    servers, harness = quorum

    async def case() -> None:
        one, other = claim(name="disLock:1", expire=300), claim(name="disLock:2", expire=300)
        for each in (one, other):
            assert isinstance(await harness.port.acquire(each, 0), Granted)
        (line,) = await harness.port.inspect(["disLock:1"])
        for server in servers:
            with redis.Redis.from_url(server.url) as client:
                client.config_set("maxmemory", 1)
        try:
            assert await harness.port.revoke("disLock:1", line.fence or 0)
            assert await harness.port.extend([one]) == ["revoked"]
            assert await harness.port.release(other, cooldown=300) is None
        finally:
            for server in servers:
                with redis.Redis.from_url(server.url) as client:
                    client.config_set("maxmemory", 0)
        assert [(each.name, each.state) for each in await harness.port.inspect()] == [("disLock:2", "cooldown")]

    harness.run(case())


def test_acquired_in_a_thread_and_released_in_a_task(slow: Proxy) -> None:
    """As with a synchronous view whose answer is streamed under ASGI: what a slow node had is given back, too."""
    lock("other", expire=30).acquire().release()
    slow.delay = 0.3
    lease = lock("order:7", expire=300).acquire()

    async def case() -> None:
        await lease.arelease()
        await asyncio.sleep(0.01)

    asyncio.run(case())


@pytest.fixture
def three_proxied(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], mode: Any
) -> Iterator[tuple[list[Proxy], Any]]:
    """Three nodes behind proxies, which know the scripts (else each is sent once more), and a harness over them."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in own_nodes[:3]]
        open_store(proxies, socket_timeout=SLACK, socket_connect_timeout=SLACK)
        lock("other", expire=10).acquire().release()
        yield proxies, mode(registry().store("default"))


@pytest.mark.parametrize("lost", range(1, 4))
@pytest.mark.parametrize("cooldown", [0, 5])
def test_a_release_that_has_to_be_sent_twice_is_no_loss(three_proxied: Any, cooldown: int, lost: int) -> None:
    """Where the connections broke after the nodes had done it, the second copy found nothing there."""
    proxies, harness = three_proxied

    async def case() -> None:
        async with harness.inside(lock("order:7", expire=10, hold_at_least=cooldown or None)):
            for proxy in proxies[:lost]:
                proxy.lose_answer(to=NAME.encode())
        assert [line.state for line in await harness.port.inspect([NAME])] == ["cooldown"] * bool(cooldown)

    harness.run(case())
    # The caller does not wait for a node that is not needed, nor for a slow one.
    eventually(lambda: [proxy.lost for proxy in proxies] == [1] * lost + [0] * (3 - lost), "the answers are lost")


@pytest.mark.parametrize("cooldown", [0.0, 300.0])
@pytest.mark.parametrize(("ended", "silent"), [(0, 3), (1, 2)])
def test_a_lock_that_a_minority_kept_is_not_kept(quorum: Quorum, cooldown: float, ended: int, silent: int) -> None:
    """The silent nodes may not have heard of it: a majority for the next caller as soon as the lease is over there.

    A plain release is over then, whatever they have heard.
    """
    servers, harness = quorum
    mine = claim(name=NAME, expire=300)

    async def case() -> None:
        assert isinstance(await harness.port.acquire(mine, 0), Granted)
        await harness.until(lambda: _all_have_it(servers, harness))
        for server in servers[:ended]:
            _flush(server)
        for server in servers[-silent:]:
            server.pause()
        try:
            if cooldown:
                with pytest.raises(BackendUnavailable, match=r" of 5 nodes .* 3 are needed: ") as told:
                    await harness.port.release(mine, cooldown)
                for server in servers[-silent:]:
                    assert f":{server.port} " in str(told.value), "no answer was lost: these nodes are missing"
            else:
                assert await harness.port.release(mine) is None
        finally:
            for server in servers[-silent:]:
                server.resume()

        async def kept() -> bool:
            try:
                return await harness.port.release(mine, cooldown) is None
            except BackendUnavailable:  # they are just coming back
                return False

        if cooldown:
            await harness.until(kept)
            assert [line.state for line in await harness.port.inspect([NAME])] == ["cooldown"]

    harness.run(case())


def test_a_lock_that_a_majority_gave_away_is_lost_whoever_was_asked_twice(
    own_nodes: list[RedisServer], three_proxied: Any
) -> None:
    """One broken connection was taken for a doubt, and the block heard nothing."""
    proxies, harness = three_proxied

    clients = [redis.Redis.from_url(node.url) for node in own_nodes[:3]]

    async def all_have_voted() -> bool:
        return all(client.exists(NAME) for client in clients)

    async def case() -> None:
        with pytest.raises(LeaseLost):
            async with harness.inside(lock("order:7", expire=10)):
                await harness.until(all_have_voted)  # a vote that comes later is none that was given away
                for client in clients:
                    client.delete(NAME)
                    client.close()
                proxies[0].lose_answer(to=NAME.encode())

    harness.run(case())


@pytest.mark.parametrize("port", ["sync_port", "renewal_port"])
def test_a_question_that_is_under_way_while_the_store_is_closed_keeps_no_connection(
    own_nodes: list[RedisServer], open_store: Callable[..., Store], port: str
) -> None:
    """Those that nobody waited for any more stayed open, until a node was asked again."""
    backend: Any = open_store(own_nodes).backend
    pools = [pool for node in backend._nodes for pool in node.pools.values()]

    def is_closed(_: object) -> bool:
        assert sum(pool.in_use for pool in pools) == len(own_nodes)
        backend.close()
        return True

    drive(getattr(backend, port)()._quorum.ask(INSPECT, [NAME], lambda _: (), is_closed))
    assert [pool.in_use for pool in pools] == [0] * len(pools)


def test_what_was_put_off_is_done_at_the_end_of_the_store_though_no_answer_was_read(
    own_nodes: list[RedisServer], open_store: Callable[..., Store]
) -> None:
    """The connections whose answers no caller waited for were all that there might be."""
    backend: Any = open_store(own_nodes, max_connections=1, socket_timeout=SLACK, socket_connect_timeout=SLACK).backend
    mine = claim(name=NAME, expire=300)
    drive(backend.sync_port().acquire(mine, 0))
    drive(backend.sync_port()._quorum.ask(INSPECT, [NAME], lambda _: (), lambda _: True))  # nobody reads the answers
    for node in backend._nodes:
        assert node.pools[False].in_use == 1
        node.outage.postpone(partial(node._cancel, mine, 0), after=LONG, within=2 * LONG)
    backend.close()
    assert left_on(own_nodes) == {}
