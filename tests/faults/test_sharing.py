"""Processes that share a lock: never more than its limit, never a writer beside anybody, and everybody has a turn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web.core.backend import SHARED
from tests.support.waiting import LONG, SLACK, eventually

PROGRAM = Path(__file__).parent.parent / "support" / "programs" / "sharer.py"

#: Each has a fixture ``<name>_settings``. Who is inside is counted in Redis, whatever the store.
STORES = ["redis", "sqlite", *(pytest.param(store, marks=pytest.mark.nightly) for store in ("postgres", "mariadb"))]


@pytest.fixture(params=STORES)
def start(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []
    settings = request.getfixturevalue(f"{request.param}_settings")
    patience, slower = ("socket_timeout", 1) if request.param == "redis" else ("timeout", 10)
    fixed = {"url": redis_url, "settings": {"OPTIONS": {patience: 10}, **settings}}

    def start(count: int, *, section: float = 0.002, **options: Any) -> list[subprocess.Popen[str]]:
        given = {"expire": 30.0, "writers": 0.0, "threads": 1, "section": section * slower, **options, **fixed}
        command = [sys.executable, str(PROGRAM), json.dumps(given)]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        started.extend(processes)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return processes

    yield start
    for process in started:
        process.kill()
        process.communicate()


def jain(numbers: list[int]) -> float:
    """Jain's index of fairness: 1, if all are alike."""
    return sum(numbers) ** 2 / (len(numbers) * sum(number**2 for number in numbers))


def test_32_waiters_on_4_places_are_served_alike(start: Any, redis_client: redis.Redis) -> None:
    processes = start(8, threads=4, kind={"limit": 4}, most=4, seconds=4.0, section=0.01)
    assert [process.wait() for process in processes] == [0] * 8
    assert redis_client.lrange("violations", 0, -1) == []
    assert int(redis_client.get("most") or 0) == 4
    done = [int(number) for number in redis_client.lrange("done", 0, -1)]
    assert len(done) == 32
    assert jain(done) > 0.97 or max(done) - min(done) <= 2, done


def test_a_writer_is_alone_among_readers_and_has_its_turn(start: Any, redis_client: redis.Redis) -> None:
    processes = start(8, threads=2, kind={"shared": True}, most=SHARED, seconds=4.0, writers=0.1)
    assert [process.wait() for process in processes] == [0] * 8
    assert redis_client.lrange("violations", 0, -1) == []
    assert int(redis_client.get("most") or 0) > 1, "the readers were not inside together"
    waits: dict[str, list[float]] = {"reader": [], "writer": []}
    for text in redis_client.lrange("waits", 0, -1):
        role, seconds = json.loads(text)
        waits[role].append(seconds)
    print({role: (len(every), sorted(every)[len(every) // 2], max(every)) for role, every in waits.items()})
    assert len(waits["writer"]) > len(waits["reader"]) / 30
    eventually(lambda: not redis_client.keys("disLock:shared*"), "what the last ones are told of is forgotten", LONG)


def test_a_holder_that_is_killed_costs_one_place_for_its_lease(start: Any, redis_client: redis.Redis) -> None:
    lease = 4.0
    (killed,) = start(1, kind={"limit": 3}, most=3, seconds=60.0, section=60.0, expire=lease)
    eventually(lambda: redis_client.get("first with 1"), "it is inside")
    killed.kill()
    others = start(6, kind={"limit": 3}, most=4, seconds=lease + 2)
    began = float(redis_client.time()[0])
    assert [process.wait() for process in others] == [0] * 6
    assert redis_client.lrange("violations", 0, -1) == []
    # It never left, by its own count: with it, three others are a fourth, for which its place has to be free.
    begun, fourth = (float(redis_client.get(f"first with {number}") or 0) for number in (1, 4))
    assert fourth - begun > lease * 0.95
    assert fourth < max(begun + lease, began) + SLACK


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{"limit": 3}, {"shared": True}], ids=["limit", "shared"])
def test_those_that_are_killed_let_nobody_in_who_must_not_be(
    start: Any, redis_client: redis.Redis, kind: dict[str, Any]
) -> None:
    """Inside, in the queue, or between the two: what was theirs ends with its lease, and the others go on."""
    most = 3 if "limit" in kind else SHARED
    processes = start(8, threads=2, kind=kind, most=most, seconds=20.0, section=0.01, writers=0.15, expire=4.0)
    killed, living = processes[:3], processes[3:]
    for process in killed:
        time.sleep(1.5)
        process.kill()
        process.wait()
        redis_client.sadd("dead", process.pid)
    assert [process.wait() for process in living] == [0] * len(living)
    assert redis_client.lrange("violations", 0, -1) == []
    done = [int(number) for number in redis_client.lrange("done", 0, -1)]
    assert len(done) == 2 * len(living)
    assert min(done) > 3, done
