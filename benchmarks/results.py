"""What a run has measured: cases, each a table of contenders and measures, each cell a sample per round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


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

    def ratio(self, contender: str, measure: str) -> Spread:
        """To the reference, round by round: what slows a whole round down slows both."""
        pairs = zip(self.samples[contender][measure], self.samples[self.reference][measure], strict=True)
        return Spread.of([own / other if other else math.nan for own, other in pairs])
