"""The bars that the project has set itself, and whether a run clears them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .contenders import OURS
from .plan import FULL
from .renewal import SmallPool
from .results import Case, Spread
from .store_recovery import STORES, case_name, row


@dataclass(frozen=True)
class Bar:
    """A limit for one of our measures, and a second one that would be excellent."""

    case: str
    measure: str
    limit: float
    beyond: float | None = None
    ratio: bool = False  #: to the case's reference, not in the measure's unit
    at_least: bool = False
    contender: str = OURS

    def cleared(self, value: float, limit: float | None) -> bool:
        if limit is None or math.isnan(value):
            return False
        return value >= limit if self.at_least else value <= limit


@dataclass(frozen=True)
class Verdict:
    bar: Bar
    found: Spread
    digits: int

    @property
    def passed(self) -> bool:
        return self.bar.cleared(round(self.found.median, self.digits), self.bar.limit)

    @property
    def beyond(self) -> bool:
        return self.bar.cleared(round(self.found.median, self.digits), self.bar.beyond)


def _crowds(
    measure: str, limit: float, beyond: float | None, *sizes: int, ratio: bool, at_least: bool = False
) -> list[Bar]:
    return [Bar(f"{size} waiters", measure, limit, beyond, ratio, at_least) for size in sizes]


def _cycle(case: str) -> list[Bar]:
    """What a free lock may cost the server, beside redis-py's."""
    return [
        Bar(case, "commands", 11, 8),
        Bar(case, "command time", 2.5, 1.8, ratio=True),
        Bar(case, "CPU", 1.25, 1.1, ratio=True),
    ]


def _recovery(case: str) -> list[Bar]:
    """How long after the end of the dead holder's lease the next one may have the lock, and the others after it."""
    return [Bar(case, "p50", 50), Bar(case, "longest", 100), Bar(case, "gap", 100), Bar(case, "unserved", 0)]


def _store_recovery(case: str, contender: str) -> list[Bar]:
    return [Bar(case, "p99", 100, contender=contender), Bar(case, "unserved", 0, contender=contender)]


BARS: Sequence[Bar] = (
    Bar("1 thread", "time", 1.05, 0.9, ratio=True),
    Bar("8 threads", "time", 0.65, 0.5, ratio=True),
    Bar("64 tasks", "time", 0.45, 0.3, ratio=True),
    *_cycle("server, new names"),
    *_cycle("server, known name"),
    Bar("names left", "keys", 0, 0),
    Bar("names left", "bytes per name", 0, 0),
    *_crowds("sections", 0.97, 1.0, 8, 32, ratio=True, at_least=True),
    *_crowds("hand-off", 1.3, 1.0, 8, 32, ratio=True),
    *_crowds("longest", 1.3, 1.1, 8, 32, ratio=True),
    *_crowds("requests", 2.1, None, 2, 8, 32, ratio=False),
    Bar("no think", "Jain", 0.99, at_least=True),
    Bar("places", "sections", 0.95, 1.0, ratio=True, at_least=True),
    Bar("places", "Jain", 0.99, at_least=True),
    Bar("readers", "writer's wait", 1.5),
    Bar("once", "more", 1, 0),
    Bar("once", "replay", 1),
    *(bar for recovery in FULL.recoveries for bar in _recovery(recovery.case)),
    *(
        bar
        for recovery in FULL.store_recoveries
        for store in STORES
        for bar in _store_recovery(case_name(recovery), row(store))
    ),
    *(
        Bar("renewal", measure, limit, contender=contender)
        for contender in (OURS, SmallPool.name)
        for measure, limit in (("threads", 1), ("requests", 4), ("CPU", 0.06), ("lost", 0))
    ),
    Bar("view", "added", 1.3, 1.0, ratio=True),
    Bar("redlock, all up", "acquire p50", 2.0, ratio=True),
    Bar("silence", "kept", 0.9, 1.0, at_least=True),
)


def verdicts(cases: Sequence[Case]) -> Iterator[Verdict]:
    """One for each bar whose case was run."""
    by_name = {case.name: case for case in cases}
    for bar in BARS:
        case = by_name.get(bar.case)
        if case is not None and bar.contender in case.samples:
            measure = next(measure for measure in case.measures if measure.name == bar.measure)
            found = case.ratio(bar.contender, bar.measure) if bar.ratio else case.spread(bar.contender, bar.measure)
            yield Verdict(bar, found, 2 if bar.ratio else measure.digits)
