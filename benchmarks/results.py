"""What a run has measured: cases, each a table of contenders and measures, each cell a sample per round."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Spread:
    """The middle of some samples, and their quartiles."""

    n: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        known = [sample for sample in samples if not math.isnan(sample)]
        if len(known) < 2:
            only = known[0] if known else math.nan
            return cls(len(known), only, only, only)
        low, median, high = statistics.quantiles(known, n=4, method="inclusive")
        return cls(len(known), median, low, high)


@dataclass(frozen=True)
class Measure:
    """One column. ``compared``: also shown as a ratio to the reference's sample of the same round. ``largest``: that of
    the samples is shown, and not their median.
    """

    name: str
    unit: str
    digits: int = 1
    compared: bool = False
    largest: bool = False


@dataclass
class Case:
    """One situation in which all contenders were measured, in turns."""

    name: str  #: short, for the progress
    title: str
    measures: Sequence[Measure]
    reference: str  #: the contender that the ratios are to; "" where nothing is compared
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, contender: str, **values: float) -> None:
        """One sample of every measure; called once per contender and round."""
        row = self.samples.setdefault(contender, {measure.name: [] for measure in self.measures})
        for name, value in values.items():
            row[name].append(value)

    def spread(self, contender: str, measure: str) -> Spread:
        samples = self.samples[contender][measure]
        largest = next(column.largest for column in self.measures if column.name == measure)
        if not largest:
            return Spread.of(samples)
        return Spread.of([max((sample for sample in samples if not math.isnan(sample)), default=math.nan)])

    def ratio(self, contender: str, measure: str, to: str = "") -> Spread:
        """To the reference or another one, round by round: what slows a whole round down slows both."""
        pairs = zip(self.samples[contender][measure], self.samples[to or self.reference][measure], strict=True)
        return Spread.of([own / other if other else math.nan for own, other in pairs])

    def rounds(self) -> int:
        return max((len(samples) for row in self.samples.values() for samples in row.values()), default=0)


@dataclass
class Run:
    """One run of one commit on one machine. It is kept in a file after each scenario: an interruption loses one."""

    begun: str  #: date and hour
    commit: str
    about: str  #: versions, CPUs
    load: float  #: of the machine over the minute before: what else ran on it
    quick: bool
    cases: list[Case] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  #: that each scenario took

    def case(self, name: str) -> Case:
        """Raises ``KeyError`` for what was not measured."""
        for case in self.cases:
            if case.name == name and case.samples:
                return case
        raise KeyError(name)

    def save(self, path: Path) -> None:
        """In place of what was there, in one step; a line for each case."""
        head = json.dumps({name: value for name, value in vars(self).items() if name != "cases"}, ensure_ascii=False)
        cases = ",\n".join(json.dumps(_kept(case), ensure_ascii=False) for case in self.cases)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(f'{head[:-1]}, "cases": [\n{cases}\n]}}\n', "utf-8")
        os.replace(unfinished, path)

    @classmethod
    def load_from(cls, path: Path) -> Self:
        kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
        cases = [_case_of(**of_one) for of_one in kept.pop("cases")]
        return cls(**kept, cases=cases)


def _kept(case: Case) -> dict[str, Any]:
    """With five digits of each sample: no clock here is better."""
    found = asdict(case)
    for row in found["samples"].values():
        for name, samples in row.items():
            row[name] = [float(f"{sample:.5g}") for sample in samples]
    return found


def _case_of(measures: list[dict[str, Any]], **of_one: Any) -> Case:
    return Case(measures=[Measure(**measure) for measure in measures], **of_one)
