"""Hand-over among processes: how soon the next one has the lock, how evenly they get it, what it costs."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from .contenders import CONTENDED, Contender, HandOff
from .crowd import SECTION, Crowd, Turn, Window
from .plan import Bench, in_turns, installed
from .results import Case, Measure

#: Seconds between two turns of one waiter: less than a section, so somebody always waits, even with two.
THINK = (0.001, 0.005)
FAIR_CROWD = 32

MEASURES = (
    Measure("sections", "/s", compared=True),
    Measure("hand-off", "µs", 0, compared=True),
    Measure("wait p50", "ms"),
    Measure("wait p99", "ms"),
    Measure("longest", "ms", compared=True),
    Measure("requests", "", 2),
    Measure("commands", ""),
    Measure("stolen", "%"),
    Measure("Jain", "", 3),
    Measure("server CPU", "µs", 0),
    Measure("client CPU", "µs", 0),
)


def run(bench: Bench) -> Iterator[Case]:
    plan = bench.plan
    bench.expect((len(plan.crowds) + 1) * len(CONTENDED) * plan.crowd_rounds)
    for size in plan.crowds:
        yield case_of(bench, size, f"{size} waiters", title_of(size), THINK)
    yield case_of(bench, FAIR_CROWD, "no think", f"Fairness, {FAIR_CROWD} processes that ask again at once", (0.0, 0.0))


def title_of(size: int) -> str:
    section = f"{SECTION * 1000:.0f} ms section"
    return f"Hand-over, {size} processes, {section}, {THINK[0] * 1000:.0f} to {THINK[1] * 1000:.0f} ms think"


def case_of(bench: Bench, size: int, name: str, title: str, think: tuple[float, float], url: str = "") -> Case:
    case = Case(name, title, MEASURES, HandOff.name)
    kinds: Sequence[type[Contender]] = []
    for contender in installed(CONTENDED, bench.server.url, case.notes.append):
        contender.close()
        kinds = [*kinds, type(contender)]
    errors: Counter[str] = Counter()
    with Crowd(size, url or bench.server.url, bench.server.pid) as crowd:
        for kind in in_turns(kinds, bench.plan.crowd_rounds):
            window = crowd.compete(kind, bench.plan.window, think)
            case.add(kind.name, **summary(window))
            errors.update(f"{kind.name}: {error}" for error in window.errors)
            if overlaps(window.turns):
                case.notes.append(f"{kind.name}: {overlaps(window.turns)} SECTIONS OVERLAPPED. It did not exclude.")
            bench.step(f"{case.name}: {kind.name}")
    case.notes += [f"{times} x {error}" for error, times in errors.most_common(5)]
    return case


def summary(window: Window) -> dict[str, float]:
    """Every measure of a window."""
    inside = [turn for turn in window.turns if window.begin <= turn.got < window.end]
    waits = [turn.got - turn.asked for turn in inside]
    # Whoever still waits at the end has waited so long at least: leaving him out would hide the starved.
    waiting = [window.end - turn.asked for turn in window.turns if turn.asked < window.end <= turn.got]
    latencies, stolen = hand_offs(window)
    sections = len(inside) or math.nan
    return {
        "sections": len(inside) / (window.end - window.begin),
        "hand-off": statistics.median(latencies) * 1e6 if latencies else math.nan,
        "wait p50": statistics.median(waits) * 1e3 if waits else math.nan,
        "wait p99": sorted(waits)[math.ceil(len(waits) * 0.99) - 1] * 1e3 if waits else math.nan,
        "longest": max(waits + waiting) * 1e3,
        "requests": window.used.requests / sections,
        "commands": window.used.commands / sections,
        "stolen": stolen * 100,
        "Jain": jain([sum(turn.waiter == waiter for turn in inside) for waiter in range(window.crowd)]),
        "server CPU": window.used.server_cpu / sections * 1e6,
        "client CPU": window.used.client_cpu / sections * 1e6,
    }


def hand_offs(window: Window) -> tuple[list[float], float]:
    """From each release call to the next process's acquire returning, where somebody was waiting at that moment;
    and the share of releases after which the releaser took the lock back before those who waited."""
    asked = sorted(turn.asked for turn in window.turns)
    got = [turn.got for turn in window.turns]
    latencies, stolen = [], 0
    for turn, following in pairwise(window.turns):
        if not window.begin <= turn.release < window.end:
            continue
        if bisect_left(asked, turn.release) <= bisect_left(got, turn.release):
            continue  # nobody was waiting
        if following.waiter == turn.waiter:
            stolen += 1
        else:
            latencies.append(following.got - turn.release)
    return latencies, stolen / (len(latencies) + stolen or 1)


def jain(shares: Sequence[int]) -> float:
    """Jain's index of fairness: 1 when all have the same, 1/n when one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan


def overlaps(turns: Sequence[Turn]) -> int:
    """How often a section began before the one before it had ended."""
    return sum(following.got < turn.release for turn, following in pairwise(turns))
