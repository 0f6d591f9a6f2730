"""That ``python -m benchmarks`` runs, and that what it computes from a run is right."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import handoff, report
from benchmarks.crowd import Turn, Used, Window
from benchmarks.plan import Bench
from benchmarks.results import Case, Measure, Run
from tests.support.requirements import require_redis

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_quick_run_prints_its_tables(tmp_path: Path) -> None:
    require_redis()
    kept = tmp_path / "run.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "uncontended", "--save", str(kept)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Medians of 5 rounds; ratios to raw commands") == 5
    assert run.stdout.count("| distlock_web |") == run.stdout.count("| raw, our transport |") == 5
    assert "| 1.00 ±0.00 |" in run.stdout
    again = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--from", str(kept)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert again.stdout == run.stdout


class Fails:
    """A scenario whose second case fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, bench: Bench) -> Iterator[Case]:
        yield case([200, 210], [100, 100])
        raise self.error


@pytest.mark.parametrize(
    ("error", "missing"),
    [(ValueError("no wall"), "one, two"), (KeyboardInterrupt(), "the rest, which was interrupted")],
)
def test_what_was_measured_is_kept_when_a_scenario_fails(
    error: BaseException,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    require_redis()
    monkeypatch.setattr(program, "SCENARIOS", {"one": Fails(error), "two": Fails(error)})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--save", str(tmp_path / "run.json")])
    with pytest.raises(SystemExit, match=f"Not measured: {missing}"):
        program.main()
    told = capsys.readouterr()
    assert "**A free lock.**" in told.out
    if isinstance(error, Exception):
        assert "no wall" in told.err
    kept = Run.load_from(tmp_path / "run.json")
    assert [each.title for each in kept.cases] == ["A free lock"] * told.out.count("**A free lock.**")
    assert kept.case("1 thread").spread("distlock_web", "time").median == 205


def window(*turns: tuple[int, float, float, float]) -> Window:
    return Window(10.0, 20.0, 3, [Turn(*turn) for turn in turns], Used(12, 60, 0.3, 0.6), [])


def test_a_hand_off_counts_from_the_release_call_where_somebody_waited() -> None:
    seen = window(
        (0, 9.0, 11.0, 12.0),
        (1, 11.5, 12.25, 13.0),  # waited when 0 released: 0.25 s
        (2, 14.0, 14.1, 15.0),  # nobody waited when 1 released: no hand-off
    )
    latencies, stolen = handoff.hand_offs(seen)
    assert latencies == [pytest.approx(0.25)]
    assert stolen == 0


def test_taking_the_lock_back_before_those_who_wait_is_no_hand_off() -> None:
    seen = window((0, 9.0, 11.0, 12.0), (0, 12.1, 12.2, 13.0), (1, 11.5, 13.5, 14.0))
    latencies, stolen = handoff.hand_offs(seen)
    assert latencies == [pytest.approx(0.5)]
    assert stolen == 0.5


def test_who_still_waits_at_the_end_counts_among_the_waits() -> None:
    seen = window((0, 10.0, 11.0, 12.0), (1, 13.0, 21.0, 21.0))
    assert handoff.summary(seen)["longest"] == pytest.approx(7000)


@pytest.mark.parametrize(("shares", "index"), [([3, 3, 3], 1.0), ([9, 0, 0], 1 / 3), ([2, 1, 0], 0.6)])
def test_jain(shares: list[int], index: float) -> None:
    assert handoff.jain(shares) == pytest.approx(index)


def test_sections_that_overlap_are_seen() -> None:
    assert handoff.overlaps([Turn(0, 0, 1.0, 2.0), Turn(1, 0, 1.9, 3.0), Turn(2, 0, 3.0, 4.0)]) == 1


def case(ours: list[float], raw: list[float]) -> Case:
    made = Case("1 thread", "A free lock", (Measure("time", "µs", compared=True),), "raw commands")
    for own, other in zip(ours, raw, strict=True):
        made.add("distlock_web", time=own)
        made.add("raw commands", time=other)
    return made


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was three times slower in the second round: of both. The ratio of the medians would be 2.2.
    found = case([100, 330, 110], [100, 300, 50]).ratio("distlock_web", "time")
    assert (found.n, found.median) == (3, pytest.approx(1.1))


def test_a_missing_sample_is_left_out() -> None:
    missing = case([math.nan, math.nan], [100, 100])
    assert missing.ratio("distlock_web", "time").n == 0
    assert "| distlock_web | - | - |" in [*report.markdown(missing)]
