"""A lock with several holders: 32 processes for 4 places, and readers beside writers; and what ``once`` sends."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count, pairwise

from .contenders import EXPIRE, OURS, WAIT, Contender, Distlock, HandOff
from .crowd import SECTION, Crowd, Turn, Window
from .handoff import MEASURES, THINK, summary
from .plan import Bench, in_turns
from .probe import Probe
from .results import Case, Measure

PLACES, CROWD = 4, 32
READERS, WRITERS = 16, 0.1  #: processes, and how often one writes
CALLS = 200  #: of ``once``, to count what is sent


class Tokens(HandOff):
    """As many elements in the list as there are places: the least that these can send."""

    name = "BLPOP tokens"
    alone = False

    def prepare(self, key: str) -> None:
        self.client.delete(key)
        self.client.rpush(key, *range(PLACES))


class Places(Distlock):
    alone = False

    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        return self._lock(key, expire=expire, wait=WAIT, limit=PLACES)


class ReadersAndWriters(Distlock):
    def lock(self, key: str, expire: int = EXPIRE) -> AbstractContextManager[object]:
        self.alone = random.random() < WRITERS
        return self._lock(key, expire=expire, wait=WAIT, shared=not self.alone)


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(3 * bench.plan.crowd_rounds + 1)
    names = "sections", "wait p50", "longest", "requests", "Jain", "server CPU", "client CPU"
    shown = [measure for measure in MEASURES if measure.name in names]
    title = f"{CROWD} processes for {PLACES} places, {SECTION * 1000:.0f} ms section"
    yield _crowded(bench, CROWD, Case("places", title, shown, Tokens.name), (Tokens, Places))
    waits = Measure("writer's wait", "", 2), Measure("writers", "ms"), Measure("readers", "ms")
    title = f"{READERS} processes, {1 - WRITERS:.0%} readers: how long a writer waits, in waits of the readers"
    yield _crowded(bench, READERS, Case("readers", title, (*waits, *shown[-4:]), ""), (ReadersAndWriters,))
    yield _once(bench)


def _crowded(bench: Bench, size: int, case: Case, kinds: Sequence[type[Contender]]) -> Case:
    with Crowd(size, bench.server.url, bench.server.pid) as crowd:
        for kind in in_turns(kinds, bench.plan.crowd_rounds):
            window = crowd.compete(kind, bench.plan.window, THINK)
            found = {**summary(window), **waits(window)}
            case.add(kind.name, **{measure.name: found[measure.name] for measure in case.measures})
            case.notes += sorted({f"{kind.name}: {error}" for error in window.errors})
            if most(window.turns) > (size if kind is ReadersAndWriters else PLACES):
                case.notes.append(f"{kind.name}: TOO MANY WERE INSIDE AT ONCE. It did not exclude.")
            bench.step(f"{case.name}: {kind.name}")
    return case


def _once(bench: Bench) -> Case:
    """Counted, not measured: what one caller sends for a plain lock, for a first run, and for a replay."""
    import distlock_web

    measures = (
        Measure("plain lock", "", 2),
        Measure("first run", "", 2),
        Measure("more", "", 2),
        Measure("replay", "", 2),
    )
    case = Case("once", "Requests of a lock, of the first run of once, and of a replay", measures, "")
    registry, number = distlock_web.configure({"default": {"LOCATION": bench.server.url}}), count()

    @distlock_web.distributed_lockable(key="bench:{order}")
    def plain(order: int) -> int:
        return order

    @distlock_web.once(key="bench:{order}", keep="1h", result=True)
    def run(order: int) -> int:
        return order

    with Probe(bench.server.url) as probe:
        plain(next(number)), run(next(number)), run(0)  # connects, loads scripts
        first = next(number)
        orders = range(first, first + CALLS)
        asked = [probe.requests()]
        for call in (plain, run, run):
            for order in orders:
                call(order)
            asked.append(probe.requests())
        probe.flush()
    registry.close()
    locked, ran, again = ((after - before) / CALLS for before, after in pairwise(asked))
    case.add(OURS, **{"plain lock": locked, "first run": ran, "more": ran - locked, "replay": again})
    bench.step(case.name)
    return case


# What a window shows -------------------------------------------------------------------------------------------------


def waits(window: Window) -> dict[str, float]:
    """The median waits of those that want to be alone and of the others, and the one in the other."""
    waits: tuple[list[float], list[float]] = [], []
    for turn in window.turns:
        if window.begin <= turn.got < window.end:
            waits[turn.alone].append(turn.got - turn.asked)
    readers, writers = (statistics.median(each) * 1e3 if each else math.nan for each in waits)
    return {"readers": readers, "writers": writers, "writer's wait": writers / readers}


def most(turns: Sequence[Turn]) -> float:
    """How many were inside at once; infinite if one that wants to be alone was beside anybody."""
    inside: list[Turn] = []
    found = 0.0
    for turn in sorted(turns, key=lambda turn: turn.got):
        inside = [other for other in inside if other.release > turn.got] + [turn]
        alone = len(inside) == 1 or not any(each.alone for each in inside)
        found = max(found, len(inside) if alone else math.inf)
    return found
