"""Fences that only grow, whichever majority gives them, and answers that come late."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, lock
from distlock_web.backends.redlock.port import RedlockPort
from distlock_web.core.backend import Granted
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.waiting import SLACK

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


def test_votes_that_go_away_before_a_fence_is_agreed_on_are_said_and_leave_none_behind(
    own_nodes: list[RedisServer], open_store: Callable[..., Any], mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that it had taken too long; and who voted only then kept the vote until the lease was over."""
    servers, harness = own_nodes, mode(open_store(own_nodes, socket_timeout=SLACK, socket_connect_timeout=SLACK))
    port: Any = harness.port
    first, _, _, later, last = servers
    vote, rounds = RedlockPort._vote, list[None]()
    other, mine = claim(name=NAME, expire=300), claim(name=NAME, expire=300)

    def give(server: RedisServer) -> None:
        """As where another has just taken it there."""
        with redis.Redis.from_url(server.url) as client:
            client.set(NAME, f"{other.token}.1 held 1 1 - x", px=300_000)

    async def vote_and_change(self: RedlockPort, *args: Any, **options: Any) -> Any:
        rounds.append(None)
        if len(rounds) == 2:
            for server in servers:
                (free if server in (first, later) else give)(server)
        return await vote(self, *args, **options)

    async def case() -> None:
        assert isinstance(await port.acquire(mine, 0), Granted)  # every node knows who it is
        assert await port.release(mine) is None
        for number, server in enumerate(servers):
            raise_floor(server, (number + 1) * 3_600_000_000)
        for server in (later, last):
            give(server)
        with monkeypatch.context() as patched:
            patched.setattr(RedlockPort, "_vote", vote_and_change)
            with pytest.raises(BackendUnavailable, match="nodes took their votes back, or went away"):
                await port.acquire(mine, 0)
        assert len(rounds) == 2
        assert all(mine.token not in value for value in map(value_at, servers))

    harness.run(case())


def value_at(server: RedisServer) -> str:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return str(client.get(NAME))


def free(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.delete(NAME)
