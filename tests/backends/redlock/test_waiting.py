"""Those who wait: no votes that stay split, nobody forgotten when a node goes, and no storm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from distlock_web import lock
from distlock_web.core.registry import Store
from distlock_web.core.runtime import now
from distlock_web.testing.harness import ActorEvent, Harness
from distlock_web.testing.servers import RedisServer
from tests.support.waiting import LONG, SLACK

Quorum = tuple[list[RedisServer], Harness]
KEY = "order:7"
NAME = "disLock:" + KEY


def calls(servers: list[RedisServer]) -> int:
    """Scripts that the nodes were asked for."""
    total = 0
    for server in servers:
        with redis.Redis.from_url(server.url) as client:
            stats = client.info("commandstats")
            total += sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)
    return total


def test_two_who_come_at_once_without_waiting(
    own_nodes: list[RedisServer], open_store: Callable[..., Store], mode: Any
) -> None:
    """A nightly job on two hosts: one of them runs it, in every round. Of four votes each may get two."""
    harness = mode(open_store(own_nodes[:4]))

    async def take(other: ActorEvent) -> bool:
        lease = await harness.try_acquire(lock(KEY, expire=LONG))
        if lease is None:
            other.set()
            return False
        await other.wait()  # one that is late would have it too, one after the other
        await harness.release(lease)
        return True

    async def case() -> None:
        for _ in range(10):
            refused = harness.event()
            actors = [harness.unrelated(partial(take, refused)) for _ in range(2)]
            assert sorted([await actor.result() for actor in actors]) == [False, True]

    harness.run(case())


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_waiters_go_on_when_their_node_goes(quorum: Quorum, how: str) -> None:
    servers, harness = quorum
    entered: list[int] = []

    async def waiter(number: int) -> None:
        async with harness.inside(lock(KEY, expire=300, wait=None)):
            entered.append(number)

    async def case() -> None:
        async with harness.inside(lock(KEY, expire=300)):
            actors = []
            for number in range(3):
                actors.append(harness.unrelated(partial(waiter, number)))
                await harness.waiters(NAME, number + 1)
            getattr(servers[0], how)()  # it tells of releases: somebody's next request finds out
            async with harness.inside(lock("other", expire=30)):
                pass
            begun = now()
        for actor in actors:
            await actor.result()
        assert now() - begun < SLACK, "their leases would have lasted 300 s"

    harness.run(case())
    assert sorted(entered) == [0, 1, 2]


def test_who_waits_asks_now_and_then(quorum: Quorum) -> None:
    servers, harness = quorum

    async def waiter() -> None:
        async with harness.inside(lock(KEY, expire=300, wait=None)):
            pass

    async def case() -> None:
        async with harness.inside(lock(KEY, expire=300)):
            actors = [harness.unrelated(waiter) for _ in range(10)]
            await harness.waiters(NAME, 10)
            await harness.sleep(1.0)  # they have asked again when they began to hear
            before = calls(servers)
            await harness.sleep(2.0)
            assert calls(servers) - before <= 10 * len(servers), "each once at most: it sleeps longer than that"
            before = calls(servers)
        for actor in actors:
            await actor.result()
        # Each asked every node, and released it there; somebody else's votes were undone now and then.
        assert calls(servers) - before < 11 * 5 * 6

    harness.run(case())


def test_a_free_lock_is_one_request_to_each_node_and_one_more(quorum: Quorum) -> None:
    servers, harness = quorum

    async def case() -> None:
        for _ in range(3):
            async with harness.inside(lock("other", expire=30)):
                pass
        await harness.sleep(0.05)
        before = calls(servers)
        rounds = 10
        for _ in range(rounds):
            async with harness.inside(lock(KEY, expire=30, wait=5)):
                await harness.sleep(0.002)
        await harness.sleep(0.05)
        # A second round trip where the nodes did not agree on a fence: seldom.
        assert calls(servers) - before <= rounds * 2 * len(servers) * 1.5

    harness.run(case())


def test_who_waits_is_counted_by_a_node_that_has_forgotten_the_lock(quorum: Quorum) -> None:
    """Its vote is the waiter's for a moment, each time: so it knew of nobody to tell of the release."""
    servers, harness = quorum

    async def waiter() -> None:
        async with harness.inside(lock(KEY, expire=300, wait=None)):
            pass

    async def case() -> None:
        async with harness.inside(lock(KEY, expire=300)):
            with redis.Redis.from_url(servers[0].url) as client:
                client.delete(NAME)
            actor = harness.unrelated(waiter)
            await harness.waiters(NAME, 1)
        await actor.result()

    harness.run(case())
