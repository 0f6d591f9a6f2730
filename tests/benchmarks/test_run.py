"""That ``python -m benchmarks`` runs, and that what it computes from a run is right."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import handoff, network, pages, report
from benchmarks.contenders import OURS, DjangoRedis
from benchmarks.crowd import Turn, Used, Window
from benchmarks.plan import Bench
from benchmarks.results import Case, Measure, Run
from benchmarks.stores import STORES
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


# The tables ----------------------------------------------------------------------------------------------------------


def run_of(*cases: Case, quick: bool = False) -> Run:
    return Run("today", "abc", "Python", 0.0, quick, list(cases))


def crowd(name: str, **sections: float) -> Case:
    """Locks with so many sections a second; they are alike in all the rest."""
    made = Case(name, "A hand-over", handoff.MEASURES, "reference")
    for contender, value in sections.items():
        made.add(contender, **{measure.name: 1.0 for measure in handoff.MEASURES} | {"sections": value})
    return made


@pytest.mark.parametrize(
    ("measure", "best_first"),
    [(Measure("time", "µs", compared=True), "one nine"), (Measure("sections", "/s", compared=True), "nine one")],
)
def test_the_best_peer_comes_first(measure: Measure, best_first: str) -> None:
    made = Case("case", "title", (measure,), "reference")
    for contender, value in {"nine": 9.0, "one": 1.0, "reference": 5.0, OURS: 6.0}.items():
        made.add(contender, **{measure.name: value})
    assert report.order(made) == ["reference", OURS, *best_first.split()]


def test_a_case_without_peers_keeps_its_order() -> None:
    made = Case("capacity, sharing", "title", (Measure("commands", ""),), "")
    for name, commands in {"beside 0": 17.0, "beside 100": 21.0, "beside 1000": 20.0}.items():
        made.add(name, commands=commands)
    assert report.order(made) == ["beside 0", "beside 100", "beside 1000"]
    assert [line for line in report.markdown(made) if "±" in line] == []


@pytest.mark.parametrize(
    "name", ["free", "network", "handoff", "fairness", "timeline", "recovery", "renewal", "stores", "server", "sharing"]
)
def test_what_failed_stands_on_the_page(name: str) -> None:
    """A lock that did not exclude has a table as beautiful as any other."""
    run = Run.load_from(pages.RUN)
    for case in run.cases:
        case.notes.append("SECTIONS OVERLAPPED")
    assert "SECTIONS OVERLAPPED" in "\n".join(pages.BLOCKS[name](run))


def test_a_store_that_was_left_out_hides_no_other() -> None:
    missing, there = (
        Case(store.case, store.name, (Measure("time", "µs", compared=True),), "peer") for store in STORES[:2]
    )
    missing.notes.append("no pottery")
    for contender in ("peer", OURS):
        there.add(contender, time=2.0)
    text = [*pages.BLOCKS["stores"](run_of(missing, there))]
    assert f"| {STORES[0].name} | – | – | – | – |" in text
    assert f"| {STORES[1].name} | 2 | peer | 2 | 1.00 |" in text
    assert "- no pottery\n" in text


@pytest.mark.parametrize(("sections", "reached"), [(0.9551, "yes"), (0.9499, "yes"), (0.9449, "no")])
def test_an_aim_is_reached_by_the_number_that_is_shown(sections: float, reached: str) -> None:
    text = "\n".join(pages.BLOCKS["aims"](run_of(crowd("8 waiters", reference=1.0, **{OURS: sections}))))
    assert f"| sections, 8 processes, × BLPOP hand-off | {sections:.2f} | ≥ 0.95 | {reached} |" in text


def test_a_peer_that_would_go_past_the_relay_is_left_out() -> None:
    """Django is configured once for a process: without the relay."""
    assert DjangoRedis not in network.NETWORK


def test_a_quick_run_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "run.json"
    run_of(case([100], [100]), quick=True).save(kept)
    monkeypatch.setattr(program, "measured", lambda *given: pytest.fail("it was measured"))
    monkeypatch.setattr(pages, "write", lambda run: pytest.fail("it was written"))
    for given in (["--quick"], ["--from", str(kept)]):
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--write", *given])
        with pytest.raises(SystemExit) as refused:
            program.main()
        assert program.NOT_QUICK in f"{refused.value}{capsys.readouterr().err}"


def test_the_documentation_has_a_full_run() -> None:
    assert not Run.load_from(pages.RUN).quick
