"""What one node of a quorum is sent, and what it then executes: frozen in ``commands.txt``, to be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import LockBusy, lock
from distlock_web.backends.redlock import scripts
from distlock_web.core.registry import Store
from distlock_web.locks.lease import scope_of
from distlock_web.testing.harness import PATIENCE, SyncHarness
from distlock_web.testing.servers import RedisServer
from tests.support.stores.redlock import make_old
from tests.support.transcript import Transcript

FROZEN = Path(__file__).with_name("commands.txt")
#: Seconds for which a node has no vote after a restart. Not 0: then it would not be asked whether it has restarted.
DELAY = 60


def votes(nodes: list[RedisServer], open_store: Callable[..., Store]) -> Store:
    """The store over these nodes, which know each other for longer than their delay."""
    timeouts = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
    store = open_store(nodes, restart_delay=DELAY, **timeouts)
    store.backend.prepare()
    for node in nodes:
        make_old(node, 2 * DELAY)
    return store


def of_all(harness: Any) -> Any:
    """The same, and the node that is looked at is waited for, as all are."""
    for port in (harness.port, harness.store.renewal_port()):
        port._quorum.needed = len(port._quorum.nodes)
    return harness


def test_the_commands_of_each_cycle(own_nodes: list[RedisServer], open_store: Callable[..., Store], mode: Any) -> None:
    harness = of_all(mode(votes(own_nodes, open_store)))

    def take(**options: Any) -> Any:
        return harness.acquire(lock("lab", **{"expire": 30, **options}))

    async def case() -> None:
        await harness.release(await take())  # connected, and every script is known
        async with transcript.of("A free lock, acquired and released"):
            await harness.release(await take())
        held = await take()
        async with transcript.of("A lock that is busy"):
            with pytest.raises(LockBusy):
                await harness.unrelated(take).result()
        mine = scope_of(held).acquired[0].claim._replace(expire=45.0)
        extending = harness.store.renewal_port().extend
        assert await extending([mine], PATIENCE) == [None]
        async with transcript.of("A lease is renewed"):
            assert await extending([mine._replace(expire=50.0)], PATIENCE) == [None]
        await harness.release(held)

    with redis.Redis.from_url(own_nodes[2].url) as client:
        transcript = Transcript(client, scripts, housekeeping=1)
        harness.run(case())
    assert transcript.is_frozen_in(FROZEN)


def test_an_index_outlives_what_it_lists(own_nodes: list[RedisServer], open_store: Callable[..., Store]) -> None:
    """A vote does not ask each time for how long it lives: it knows until when at least, and asks half a day before."""
    harness, index, quorum, hour = of_all(SyncHarness(open_store(own_nodes))), "disLock:~held", "disLock:~quorum", 3600

    async def case() -> None:
        async def use(expire: int = 10) -> None:
            await harness.release(await harness.acquire(lock("lab", expire=expire)))
            assert node.ttl(index) >= 12 * hour + expire

        await use()
        await use(30 * 24 * hour)  # longer than it was known to live
        known = -(node.zscore(index, "{lasts until}") or 0) / 1_000_000 - int(node.time()[0])
        assert known < 21 * 24 * hour, "who the node is would be forgotten before a vote asks again"
        node.delete(index)
        await use()
        # An hour is left, and the node knows it.
        now = int(node.time()[0])
        node.zadd(index, {"{lasts until}": -(now + hour) * 1_000_000})
        for key in (index, quorum):
            node.expire(key, hour)
        await use()
        assert node.ttl(quorum) > 29 * 24 * hour
        # A lock that is kept for longer than its lease.
        [hold] = scope_of(await harness.acquire(lock("kept", expire=10))).acquired
        assert await harness.port.release(hold.claim, 2.0 * 24 * hour) is None
        assert node.ttl(index) >= 48 * hour
        # A lease that is only renewed: no vote is asked for.
        held = await harness.acquire(lock("lab", expire=10))
        for key in (index, quorum):
            node.expire(key, hour)
        claims = [hold.claim._replace(expire=2.0 * 24 * hour) for hold in scope_of(held).acquired]
        assert await harness.store.renewal_port().extend(claims, PATIENCE) == [None]
        assert node.ttl(index) >= 60 * hour
        assert node.ttl(quorum) > 29 * 24 * hour

    with redis.Redis.from_url(own_nodes[2].url) as node:
        harness.run(case())
