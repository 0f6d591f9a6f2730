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

from distlock_web.testing.servers import RedisServer

T = TypeVar("T")


@dataclass(frozen=True)
class Recovery:
    """Waiters in so many processes, each with so many threads, whose holder is killed again and again."""

    processes: int
    threads: int
    expire: int  #: seconds
    kills: int

    @property
    def case(self) -> str:
        return f"recovery, {self.processes} x {self.threads}, {self.expire} s"

    @property
    def waiting(self) -> str:
        """Who waits, in words."""
        each = f" of {self.threads} threads each" if self.threads > 1 else ""
        return f"{self.processes} processes{each} wait"


@dataclass(frozen=True)
class Plan:
    """The amounts. All times are seconds."""

    rounds: int = 15  #: of the scenarios within one process
    slice: float = 0.2  #: for each contender and round there
    crowds: tuple[int, ...] = (2, 8, 32)
    crowd_rounds: int = 7
    window: float = 3.0  #: for each contender and round among a crowd
    recoveries: tuple[Recovery, ...] = ()
    leases: int = 1000
    renewal_rounds: int = 3
    renewal: float = 20.0
    waiting_processes: int = 200
    held_locks: int = 100_000


FULL = Plan(
    recoveries=(Recovery(16, 1, 1, 10), Recovery(4, 50, 1, 6), Recovery(16, 1, 10, 3), Recovery(4, 50, 10, 2)),
)
QUICK = Plan(
    rounds=5,
    slice=0.05,
    crowd_rounds=1,
    window=1.5,
    recoveries=(Recovery(16, 1, 1, 3),),
    renewal_rounds=1,
    renewal=6.0,
    waiting_processes=100,
    held_locks=10_000,
)


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
