"""The holder is killed: how soon its lease's end is noticed, and whether the lock then goes round without a gap."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection

from .contenders import Contender, Distlock, PythonRedisLock, RedisPy
from .crowd import Turn, clock, warm_up
from .handoff import overlaps
from .plan import Bench, Recovery, in_turns, installed
from .probe import Probe
from .processes import Processes
from .results import Case, Measure

#: Those that live on one server and give every lease an end. django-redis's is redis-py's.
MORTAL: Sequence[type[Contender]] = (Distlock, RedisPy, PythonRedisLock)

SETTLE = 0.5  #: seconds in which everybody has asked, and sleeps
REFRESH = 0.05  #: seconds between two prolongations meanwhile

MEASURES = (
    Measure("p50", "ms"),
    Measure("longest", "ms", largest=True),
    Measure("gap", "ms", largest=True),
    Measure("unserved", "", 0, largest=True),
)


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(sum(len(MORTAL) * plan.kills for plan in bench.plan.recoveries))
    for plan in bench.plan.recoveries:
        yield _case(bench, plan)


def _case(bench: Bench, plan: Recovery) -> Case:
    title = f"The holder is killed, {plan.waiting}: time after the end of its lease of {plan.expire} s"
    case = Case(plan.case, title, MEASURES, "")
    kinds: Sequence[type[Contender]] = []
    for contender in installed(MORTAL, bench.server.url, case.notes.append):
        contender.close()
        kinds = [*kinds, type(contender)]
    errors: Counter[str] = Counter()
    with Processes(plan.processes, _wait, bench.server.url, plan.threads, plan.expire) as waiters:
        for kind in in_turns(kinds, plan.kills):
            lease_end, turns, failures = _kill(bench, waiters, kind, plan.expire)
            case.add(kind.name, **_summary(lease_end, turns, plan.processes * plan.threads))
            errors.update(f"{kind.name}: {error}" for error in failures)
            bench.step(f"{case.name}: {kind.name}")
    case.notes += [f"{times} x {error}" for error, times in errors.most_common(5)]
    return case


def _summary(lease_end: float, turns: Sequence[Turn], waiters: int) -> dict[str, float]:
    late = (turns[0].got - lease_end) * 1e3 if turns else math.nan
    gaps = [following.got - turn.release for turn, following in pairwise(turns)]
    return {
        "p50": late,
        "longest": late,
        "gap": max(gaps, default=math.nan) * 1e3,
        "unserved": waiters - len(turns),
    }


def _kill(bench: Bench, waiters: Processes, kind: type[Contender], expire: int) -> tuple[float, list[Turn], list[str]]:
    """Let one process take the lock, let all others want it, and kill that one when its lease has just begun anew.

    When that lease ends; the turns after it, in order; and errors.
    """
    key = f"order:{random.randrange(10**8):08d}"
    with Probe(bench.server.url) as probe:
        probe.flush()
        waiters.tell(kind, key)
        failures = waiters.failures()
        with Processes(1, _hold, kind, bench.server.url, key, expire) as holder:
            list(holder.hear())  # has it
            waiters.tell("go")
            until = clock() + SETTLE
            while clock() < until:
                probe.prolong(key, expire)
                time.sleep(REFRESH)
            probe.prolong(key, expire)
            killed = clock()
            holder.kill()
    turns: list[Turn] = []
    errors = [*failures]
    for of_one, its_errors in waiters.hear():
        turns += of_one
        errors += its_errors
    turns.sort(key=lambda turn: turn.got)
    if overlaps(turns) or (turns and turns[0].got < killed):
        errors.append("SECTIONS OVERLAPPED. It did not exclude.")
    return killed + expire, turns, errors


def _hold(line: Connection, _: int, kind: type[Contender], url: str, key: str, expire: int) -> None:
    contender = kind(url)
    lock = contender.lock(key, expire)  # kept: a lock that is garbage may give itself back
    lock.__enter__()
    line.send("has it")
    line.recv()  # until killed


def _wait(line: Connection, number: int, url: str, threads: int, expire: int) -> None:
    """The life of a waiting process: a contender and a key, then a start; until nobody asks."""
    try:
        while True:
            kind, key = line.recv()
            contender = kind(url)
            line.send(warm_up(contender, number))
            line.recv()
            line.send(_ask(contender, number, key, threads, expire))
            contender.close()
    except EOFError:
        pass  # the case is over


def _ask(contender: Contender, number: int, key: str, threads: int, expire: int) -> tuple[list[Turn], list[str]]:
    """Every thread takes the lock once, and gives it back at once."""
    turns, errors = [], []

    def ask() -> None:
        asked = clock()
        try:
            with contender.lock(key, expire):
                got = clock()
                turns.append(Turn(number, asked, got, clock()))
        except Exception as error:  # a peer's failure is a result, not the end of the run
            errors.append(f"{type(error).__name__}: {error}")

    asking = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return turns, errors
