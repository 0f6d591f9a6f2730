"""Fences that only grow, whichever majority gives them, and answers that come late."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import redis

from distlock_web import lock
from distlock_web.core.backend import Granted
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer

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
