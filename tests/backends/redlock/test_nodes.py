"""Nodes that are gone, that refuse, that hang, that come back: what a lock costs then, and what stays behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, Lease, LeaseLost, configure, lock
from distlock_web.backends.redlock.node import Node
from distlock_web.core import outage
from distlock_web.core.registry import Store
from distlock_web.core.runtime import drive, now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.stores.redlock import left_on
from tests.support.waiting import SLACK, eventually

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
            for _ in range(20):
                await cycle(harness)
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
    return all(node.down_since is None for node in harness.store.backend._nodes)  # type: ignore[attr-defined]


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


def test_a_node_that_fails_costs_its_time_out_once_at_most(quorum: Quorum, failure: Any) -> None:
    servers, harness = quorum
    fail, _ = failure

    async def case() -> None:
        for _ in range(5):
            await cycle(harness)
        for server in servers[1:3]:
            fail(server)
        slow = [seconds for _ in range(60) if (seconds := await cycle(harness)) >= node_timeout(harness)]
        assert len(slow) <= 2, "once for each node at most: where it was the lead, or the first to be missed"

    harness.run(case())


async def held_everywhere(servers: list[RedisServer], harness: Harness) -> Lease:
    """A lease that also those nodes have given that were not waited for."""
    lease = await harness.acquire(lock("order:7", expire=30))

    async def seen() -> bool:
        await harness.port.inspect()  # a thread reads what is left with its next request
        return len(left_on(servers)) == len(servers)

    await harness.until(seen)
    return lease


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


def test_a_renewal_takes_the_lease_again_where_a_node_has_lost_it(quorum: Quorum) -> None:
    """One node after the other loses its data, as in a rolling restart: the lease outlives them all."""
    servers, harness = quorum

    async def case() -> None:
        lease = await held_everywhere(servers, harness)
        claims = [hold.claim for hold in scope_of(lease).holds]
        for server in servers:
            _flush(server)
            assert drive(harness.store.renewal_port().extend(claims)) == [None]
            assert len(left_on([server])) == 1
        await harness.release(lease)

    harness.run(case())
    eventually(lambda: left_on(servers) == {}, "released everywhere")


def test_a_lead_that_missed_a_release_keeps_nobody_out_for_long(quorum: Quorum) -> None:
    servers, harness = quorum

    async def case() -> None:
        lease = await harness.acquire(lock("order:7", expire=300))
        lead = harness.store.backend.sync_port()._lead("disLock:order:7")  # type: ignore[attr-defined]
        server = next(server for server in servers if str(server.port) in str(lead))
        await harness.sleep(0.05)
        with redis.Redis.from_url(server.url) as client:
            kept = client.get("disLock:order:7")
            assert kept is not None
            await harness.release(lease)
            client.set("disLock:order:7", kept, px=300_000)
        assert await harness.try_acquire(lock("order:7", expire=30)) is None
        await harness.until(lambda: _free(harness, 30))
        await harness.release(await harness.acquire(lock("order:7", expire=30, wait=10)))

    harness.run(case())


def _flush(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()


def test_a_node_that_came_back_empty_is_left_out(
    own_nodes: list[RedisServer], open_store: Callable[..., Store], mode: Any
) -> None:
    """Two nodes forget a lock that three had: with their votes a second holder would have a majority."""
    delay = 4
    settled = open_store(own_nodes)
    begun = now()
    for server in own_nodes[3:]:
        server.kill()
    held = lock("order:7", expire=delay).acquire()
    for server in own_nodes[3:]:
        server.start()
    own_nodes[0].restart()
    settled.close()
    harness = mode(open_store(own_nodes, restart_delay=delay))

    async def case() -> None:
        with pytest.raises(
            BackendUnavailable, match=r"has started \d s ago .* left out for 4 s .OPTIONS: restart_delay"
        ):
            await harness.acquire(lock("order:7", expire=delay))
        await harness.until(lambda: _free(harness, delay))

    harness.run(case())
    assert now() - begun > delay
    assert held.state == "lost", "the one before believed in it no longer"


async def _free(harness: Harness, expire: float) -> bool:
    try:
        lease = await harness.try_acquire(lock("order:7", expire=expire))
    except BackendUnavailable:
        return False
    if lease is not None:
        await harness.release(lease)
    return lease is not None


def test_a_server_that_restarts_is_asked_since_when_it_runs(quorum: Quorum, open_store: Callable[..., Store]) -> None:
    """Also by a process that knew it before: its connections broke with the restart."""
    servers, _ = quorum
    store = open_store(servers, restart_delay=5)
    # A majority could be had earlier: one of it might then be left out still, when the two are restarted.
    eventually(lambda: _takes("order:7") and _has_it_everywhere(servers), "all five run for long enough")
    servers[0].restart()
    servers[1].restart()
    until = now() + 1
    while now() < until:  # far from the five seconds, and long enough to be connected again
        with lock("order:7", expire=3):
            time.sleep(0.02)
            assert all(left_on([server]) == {} for server in servers[:2])
            assert all(left_on([server]) != {} for server in servers[2:])
    eventually(lambda: all(node.down_since is None for node in store.backend._nodes), "they vote again")  # type: ignore[attr-defined]
    eventually(lambda: _has_it_everywhere(servers), "and are asked")


def _has_it_everywhere(servers: list[RedisServer]) -> bool:
    with lock("order:7", expire=3):
        time.sleep(0.01)  # who is not needed answers later
        return len(left_on(servers)) == len(servers)


def _takes(key: str) -> bool:
    try:
        with lock(key, expire=3):
            return True
    except BackendUnavailable:
        return False


def test_a_node_votes_again_however_much_there_is_to_undo(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for later is bounded: that the node votes again must not be dropped in favour of the rest."""
    monkeypatch.setattr(outage, "MAX_POSTPONED", 5)
    store = open_store(own_nodes)
    with lock("order:7", expire=30):
        pass
    node = store.backend._nodes[4]
    own_nodes[4].kill()
    node.broke(ConnectionError("it has gone"))
    for _ in range(20):
        node.cancel_later(claim())
    own_nodes[4].start()
    eventually(lambda: node.down_since is None, "it votes again")


def test_no_thread_for_an_acquisition(quorum: Quorum) -> None:
    servers, harness = quorum

    async def case() -> None:
        await cycle(harness)
        before = set(threading.enumerate())
        servers[0].pause()
        started: set[str] = set()
        for _ in range(30):
            await cycle(harness)
            started |= {thread.name for thread in set(threading.enumerate()) - before}
        # One looks for the node that hangs; another may close what is left of another test.
        assert started <= {"distlock-outage", "distlock-close"}

    harness.run(case())


def test_a_node_is_set_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = Node._start
    monkeypatch.setattr(Node, "_start", lambda node: (started.append(node), start(node)))
    url = "redlock://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003/0"
    backend: Any = configure({"default": {"LOCATION": url}}).store("default").backend
    assert started == backend._nodes
