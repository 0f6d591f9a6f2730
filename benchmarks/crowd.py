"""A crowd of processes that all want one lock, and the record of who had it when."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from .contenders import Contender
from .plan import cpu_seconds
from .probe import Probe
from .processes import Processes

SECTION = 0.005  #: seconds that the lock is held
ARRIVAL = 0.25  #: seconds over which the waiters arrive: pollers that start together fall into lockstep
LEAD = 0.75  #: seconds before the window, in which everybody connects and the queue forms

#: One clock for all processes: CLOCK_MONOTONIC counts for the whole machine.
clock = time.monotonic


@dataclass(frozen=True)
class Turn:
    """One acquisition: when the waiter asked, got the lock, and called for its release."""

    waiter: int
    asked: float
    got: float
    release: float


@dataclass(frozen=True)
class Used:
    """Counters that only grow. All times are seconds."""

    requests: int
    commands: int  #: also those that scripts call
    server_cpu: float
    client_cpu: float

    def __sub__(self, before: Used) -> Used:
        return Used(
            self.requests - before.requests,
            self.commands - before.commands,
            self.server_cpu - before.server_cpu,
            self.client_cpu - before.client_cpu,
        )


@dataclass(frozen=True)
class Window:
    """What was seen while a crowd wanted one lock. The turns are in order, and also those before and after."""

    begin: float
    end: float
    crowd: int
    turns: Sequence[Turn]
    used: Used
    errors: Sequence[str]


class Crowd(Processes):
    """So many processes, kept for all contenders of a case: starting them takes longer than a window."""

    def __init__(self, size: int, url: str, server_pid: int) -> None:
        super().__init__(size, _serve, url)
        self.size = size
        self._url = url
        self._server_pid = server_pid

    def compete(self, kind: type[Contender], seconds: float, think: tuple[float, float]) -> Window:
        """Let everybody want one lock of this kind for a while."""
        key = f"order:{random.randrange(10**8):08d}"
        probe = Probe(self._url)
        probe.flush()  # one contender's list would be another one's lock that is never free
        lock = kind(self._url)
        lock.prepare(key)
        self.tell(kind, key)
        errors = self.failures()
        begin = clock() + LEAD
        end = begin + seconds
        self.tell(begin - LEAD, end, think)
        time.sleep(begin - clock())
        first = self._counters(probe)
        time.sleep(end - clock())
        last = self._counters(probe)
        turns: list[Turn] = []
        for of_one, its_errors in self.hear():
            turns += of_one
            errors += its_errors
        probe.close()
        lock.close()
        turns.sort(key=lambda turn: turn.got)
        return Window(begin, end, self.size, turns, last - first, errors)

    def _counters(self, probe: Probe) -> Used:
        clients = sum(map(cpu_seconds, self.pids()))
        return Used(probe.requests(), probe.stats().calls.total(), cpu_seconds(self._server_pid), clients)


def _serve(line: Connection, number: int, url: str) -> None:
    """The life of a waiter: a contender and a key, then a start, an end and a time to think; until nobody asks."""
    try:
        while True:
            kind, key = line.recv()
            contender = kind(url)
            line.send(warm_up(contender, number))
            start, end, think = line.recv()
            line.send(_compete(contender, number, key, start, end, think))
            contender.close()
    except EOFError:
        pass  # the case is over


def warm_up(contender: Contender, number: int) -> list[str]:
    """Connect, and teach the server the scripts. What failed, in words: a result, not the end of the run."""
    key = f"warm:{number}"
    try:
        contender.prepare(key)
        with contender.lock(key):
            pass
    except Exception as error:
        return [f"not warm: {type(error).__name__}: {error}"]
    return []


def _compete(
    contender: Contender, number: int, key: str, start: float, end: float, think: tuple[float, float]
) -> tuple[list[Turn], list[str]]:
    turns, errors = [], []
    time.sleep(max(0.0, start + random.uniform(0, ARRIVAL) - clock()))
    while (asked := clock()) < end:
        try:
            with contender.lock(key):
                got = clock()
                if got < end:  # else only hand it on, so that the others end, too
                    time.sleep(SECTION)
                turns.append(Turn(number, asked, got, clock()))
        except Exception as error:  # a peer's failure is a result, not the end of the run
            errors.append(f"{type(error).__name__}: {error}")
        time.sleep(random.uniform(*think))
    return turns, errors
