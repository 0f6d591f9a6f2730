"""How much is measured, and the plumbing that the scenarios share."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import redis

from distlock_web.testing.servers import RedisServer

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The amounts. All times are seconds."""

    rounds: int = 15  #: of the scenarios within one process
    slice: float = 0.2  #: for each contender and round there
    crowds: tuple[int, ...] = (2, 8, 32)
    crowd_rounds: int = 5
    window: float = 3.0  #: for each contender and round among a crowd
    leases: int = 1000
    renewal_rounds: int = 3
    renewal: float = 20.0


FULL = Plan()
QUICK = Plan(rounds=5, slice=0.05, crowd_rounds=1, window=1.5, renewal_rounds=1, renewal=6.0)


class Bench(Protocol):
    """What a scenario gets: the server, the plan, and somebody to tell how far it is."""

    server: RedisServer
    plan: Plan

    def expect(self, steps: int) -> None:
        """So many steps come in this scenario."""

    def step(self, what: str) -> None:
        """One of them is done."""


def installed(kinds: Sequence[type[T]], url: str, note: Callable[[str], None]) -> list[T]:
    """One contender of each kind whose library is there; the others are named in a note."""
    made = []
    for kind in kinds:
        try:
            made.append(kind(url))  # type: ignore[call-arg]
        except ImportError as error:
            note(f"{kind.name} was left out: {error}.")  # type: ignore[attr-defined]
    return made


def in_turns(contenders: Sequence[T], rounds: int) -> Iterator[T]:
    """Every contender once per round, each round in an order of its own, with the garbage of the one before collected.

    Interleaved, because a machine is not equally fast for a minute; shuffled, because a contender's neighbour matters.
    """
    for _ in range(rounds):
        for contender in random.sample(contenders, len(contenders)):
            gc.collect()
            yield contender


@contextmanager
def one_cpu(server: RedisServer) -> Iterator[str]:
    """Client and server on one CPU, where each pays for what it does and nothing runs beside. Says so in words."""
    if not hasattr(os, "sched_setaffinity"):
        yield "not pinned: this system cannot"
        return
    everywhere = os.sched_getaffinity(0)
    for pid in (0, server.pid):
        os.sched_setaffinity(pid, {max(everywhere)})
    try:
        yield "client and server on one CPU"
    finally:
        for pid in (0, server.pid):
            os.sched_setaffinity(pid, everywhere)


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, in all its threads; 0 on a system without Linux's clocks."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python does not have
    except OSError:
        return 0.0


class Probe:
    """Our own client: it empties the server, and counts what the contenders ask of it."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._asked = 0

    def requests(self) -> int:
        """How often the server has read from a client: a request, or a pipeline, of up to 16 KB.

        Not the sum of commandstats, which also count what scripts call.
        """
        self._asked += 1
        return int(self._client.info("stats")["total_reads_processed"]) - self._asked

    def scripts(self) -> int:
        """How many scripts the server has run; no script calls another."""
        stats = self._client.info("commandstats")
        return sum(stats.get(name, {"calls": 0})["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval"))

    def names(self) -> set[str]:
        """Every key there is."""
        return {name.decode() for name in self._client.scan_iter(count=10_000)}

    def flush(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()
