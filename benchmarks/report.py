"""What a run has found, as a table in the terminal, as Markdown for the documentation, and as JSON."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .contenders import OURS
from .results import Case, Measure, Spread

PACKAGES = ("distlock_web", "redis", "hiredis", "python-redis-lock", "pottery", "django-redis", "Django")


def machine(server_version: str, *, quick: bool) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "quick": quick,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "redis_server": server_version,
        "packages": {name: _version(name) for name in PACKAGES},
        "garbage_collection": "on; collected before each sample",
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# Rows, for the terminal and for Markdown alike ------------------------------------------------------------------------


def tables(case: Case) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The case in tables of a readable width: first what is compared with the reference, then the rest."""
    compared = [measure for measure in case.measures if measure.compared]
    others = [measure for measure in case.measures if not measure.compared]
    for measures in [compared, others] if len(case.measures) >= 6 and compared else [[*others, *compared]]:
        yield _heads(measures), [_row(case, contender, measures) for contender in _order(case)]


def _order(case: Case) -> list[str]:
    """The reference first, then us, then the others, the best first."""
    by = next((measure for measure in case.measures if measure.compared), case.measures[0])
    first = {case.reference: -math.inf, OURS: -1e300}
    return sorted(case.samples, key=lambda name: first.get(name, case.spread(name, by.name).median))


def _heads(measures: Sequence[Measure]) -> list[str]:
    found = ["lock"]
    for measure in measures:
        found += [f"{measure.name} {measure.unit}".strip(), *["ratio"] * measure.compared]
    return found


def _row(case: Case, contender: str, measures: Sequence[Measure]) -> list[str]:
    cells = [contender]
    for measure in measures:
        cells.append(number(case.spread(contender, measure.name).median, measure.digits))
        if measure.compared:
            cells.append(around(case.ratio(contender, measure.name)))
    return cells


def caption(case: Case) -> str:
    rounds = max(len(samples) for row in case.samples.values() for samples in row.values())
    ratios = f"; ratios to {case.reference}" if any(measure.compared for measure in case.measures) else ""
    return f"Medians of {rounds} rounds{ratios}, ± half of the range between the quartiles."


def number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def around(spread: Spread, digits: int = 2) -> str:
    """The median, and how far the middle half of the samples lies around it."""
    median = number(spread.median, digits)
    return median if spread.n < 2 else f"{median} ±{(spread.high - spread.low) / 2:.{digits}f}"


# The three forms -----------------------------------------------------------------------------------------------------


def show(console: Console, case: Case) -> None:
    console.print(f"\n[bold]{case.title}[/]", highlight=False)
    for columns, lines in tables(case):
        _table(console, columns, lines)
    console.print(caption(case), style="dim", highlight=False)
    for note in case.notes:
        console.print(f"  {note}", markup=False, highlight=False)


def _table(console: Console, columns: Sequence[str], lines: Iterable[list[str]]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        widest = max(map(len, column.split()))  # heads are broken between words, not within
        table.add_column(column, justify="right" if index else "left", no_wrap=index == 0, min_width=widest)
    for line in lines:
        table.add_row(*line, style="bold" if line[0] == OURS else None)
    console.print(table)


def markdown(cases: Sequence[Case], about: dict[str, Any]) -> str:
    """The same tables for docs/benchmarks.md."""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items() if version)
    lines = [f"Python {about['python']}, Redis {about['redis_server']}, {about['cpus']} CPUs; {packages}.", ""]
    for case in cases:
        lines += [f"**{case.title}.** {caption(case)}", ""]
        for columns, cells in tables(case):
            lines += [*_markdown_table(columns, cells), ""]
        lines += [f"- {note}" for note in case.notes] + [""] * bool(case.notes)
    return "\n".join(lines)


def _markdown_table(columns: Sequence[str], lines: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|---|{'---:|' * (len(columns) - 1)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def as_json(cases: Sequence[Case], about: dict[str, Any]) -> dict[str, Any]:
    """Everything: each sample, its spread and its ratio."""
    return {"about": about, "cases": {case.name: _case_as_json(case) for case in cases}}


def _case_as_json(case: Case) -> dict[str, Any]:
    contenders: dict[str, Any] = {}
    for contender, samples in case.samples.items():
        contenders[contender] = {
            measure.name: {
                "unit": measure.unit,
                "samples": [None if math.isnan(sample) else sample for sample in samples[measure.name]],
                **_clean(asdict(case.spread(contender, measure.name))),
                "ratio": _clean(asdict(case.ratio(contender, measure.name))) if measure.compared else None,
            }
            for measure in case.measures
        }
    return {"title": case.title, "reference": case.reference, "contenders": contenders, "notes": case.notes}


def _clean(spread: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in spread.items()}
