"""What a run has found, as Markdown: for the terminal, and for the documentation."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata

from .contenders import OURS
from .results import Case, Measure, Spread

PACKAGES = ("distlock_web", "redis", "hiredis", "python-redis-lock", "pottery", "django-redis", "Django")


def machine(server_version: str) -> str:
    """What the numbers depend on."""
    packages = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    return f"Python {platform.python_version()}, Redis {server_version}, {os.cpu_count()} CPUs; {packages}."


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def markdown(case: Case) -> Iterator[str]:
    """Tables of a readable width: first what is compared with the reference, then the rest."""
    yield f"**{case.title}.** {_caption(case)}\n"
    compared = [measure for measure in case.measures if measure.compared]
    others = [measure for measure in case.measures if not measure.compared]
    for measures in [compared, others] if len(case.measures) >= 6 and compared else [[*others, *compared]]:
        heads = _heads(measures)
        yield f"| {' | '.join(heads)} |"
        yield f"|---|{'---:|' * (len(heads) - 1)}"
        for contender in order(case):
            yield f"| {' | '.join(_row(case, contender, measures))} |"
        yield ""
    for note in case.notes:
        yield f"- {note}\n"


def _caption(case: Case) -> str:
    rounds = case.rounds()
    compared = any(measure.compared for measure in case.measures)
    ratios = f"; ratios to {case.reference}, ± half the distance between the quartiles" if compared else ""
    return f"Medians of {rounds} round{'s' * (rounds != 1)}{ratios}."


def order(case: Case) -> list[str]:
    """The reference first, then us, then the others, the best first. Where we are all, in the order of measurement."""
    if OURS not in case.samples:
        return list(case.samples)
    by = next((measure for measure in case.measures if measure.compared), case.measures[0])
    sign = -1 if by.unit == "/s" else 1  # of a rate, more is better

    def place(name: str) -> tuple[int, float]:
        return [case.reference, OURS, name].index(name), sign * case.spread(name, by.name).median

    return sorted(case.samples, key=place)


def _heads(measures: Sequence[Measure]) -> list[str]:
    found = ["lock"]
    for measure in measures:
        found += [f"{measure.name} {measure.unit}".strip(), *["ratio"] * measure.compared]
    return found


def _row(case: Case, contender: str, measures: Sequence[Measure]) -> list[str]:
    cells = [contender]
    for measure in measures:
        cells.append(_number(case.spread(contender, measure.name).median, measure.digits))
        if measure.compared:
            cells.append(_around(case.ratio(contender, measure.name)))
    return cells


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _around(spread: Spread) -> str:
    """The median, and how far the middle half of the samples lies around it."""
    median = _number(spread.median, 2)
    return median if spread.n < 2 else f"{median} ±{(spread.high - spread.low) / 2:.2f}"
