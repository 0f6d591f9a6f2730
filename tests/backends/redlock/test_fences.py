"""Fences that only grow, whichever majority gives them, and answers that come late."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import redis

from distlock_web import configure, lock
from distlock_web.core.backend import Granted
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.proxy import Proxy
from tests.support.stores.redlock import left_on, redlock_url
from tests.support.waiting import eventually

Quorum = tuple[list[RedisServer], Harness]
NAME = "disLock:order:7"


def raise_floor(server: RedisServer, by_us: int) -> None:
    """The highest fence that this node has given is so much more, as if its clock were ahead."""
    with redis.Redis.from_url(server.url) as client:
        seconds, us = client.time()
        client.zadd("disLock:~held", {"{fences}": -(seconds * 1_000_000 + us + by_us)})


def test_fences_grow_from_majority_to_majority(quorum: Quorum) -> None:
    """Each time two other nodes are out, and each node has a clock of its own."""
    servers, harness = quorum
    for number, server in enumerate(servers):
        raise_floor(server, number * 3_600_000_000)
    nodes = harness.store.backend._nodes  # type: ignore[attr-defined]
    dice = random.Random(7)

    async def case() -> None:
        fences = []
        port: Any = harness.port
        for _ in range(30):
            out = dice.sample(nodes, 2)
            mine = claim(name=NAME)
            port._quorum.nodes = [node for node in nodes if node not in out]
            answer = await port.acquire(mine, 0)
            assert isinstance(answer, Granted)
            fences.append(answer.fence or 0)
            (line,) = await port.inspect([NAME])
            assert line.fence == answer.fence
            await port.release(mine)
            port._quorum.nodes = nodes
        assert fences == sorted(set(fences))

    harness.run(case())


def test_the_fence_is_written_down_by_a_majority_before_it_is_given(quorum: Quorum) -> None:
    servers, harness = quorum
    raise_floor(servers[4], 3_600_000_000)

    async def case() -> None:
        seen = []
        for _ in range(10):
            async with harness.inside(lock("order:7", expire=30)) as lease:
                seen.append(lease.fence or 0)
                votes = sum(fence_at(server) == lease.fence for server in servers)
                assert votes >= 3
        assert seen == sorted(set(seen))

    harness.run(case())


def test_a_client_with_a_wrong_clock_raises_no_fence(quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences are made of the nodes' clocks: one client an hour ahead raised those of all, until the nodes restarted."""
    _, harness = quorum
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3600 * 10**9)

    async def case() -> None:
        port: Any = harness.port
        for ahead_us in (0, 3_600_000_000):
            for node in port._quorum.nodes:
                node.ahead_us = (
                    node.ahead_us and node.ahead_us + ahead_us
                )  # as if it had heard a time that was never told
            for _ in range(2):
                async with harness.inside(lock("order:7", expire=30)) as lease:
                    assert abs((lease.fence or 0) / 1e6 - real() / 1e9) < 60

    harness.run(case())


def fence_at(server: RedisServer) -> int | None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        value = client.get(NAME)
        return int(str(value).split(" ")[2]) if value else None


def test_an_answer_that_comes_late_is_undone(own_nodes: list[RedisServer], mode: Any) -> None:
    """Two nodes answer after the majority has refused, or has given: either way nothing stays on them."""
    with Proxy(own_nodes[3].port) as fourth, Proxy(own_nodes[4].port) as fifth:
        hosts = [f"127.0.0.1:{port}" for port in (*(server.port for server in own_nodes[:3]), fourth.port, fifth.port)]
        url = redlock_url([]).replace("redlock:///", f"redlock://{','.join(hosts)}/")
        registry = configure({"default": {"LOCATION": url + "&socket_timeout=5&socket_connect_timeout=5"}})
        harness: Harness = mode(registry.store("default"))

        async def case() -> None:
            async with harness.inside(lock("other", expire=30)):
                pass
            await harness.sleep(0.2)
            for proxy in (fourth, fifth):
                proxy.delay = 0.3
            for _ in range(3):
                await harness.release(await harness.acquire(lock("order:7", expire=30, wait=10)))

        try:
            harness.run(case())
            eventually(lambda: left_on(own_nodes) == {}, "nothing left, though nobody asks any more", patience=10)
        finally:
            registry.close()
