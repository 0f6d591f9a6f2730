"""Every figure that was measured comes from one run, on whatever page it stands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.results import Run

RUN = Run.load_from(pages.RUN)
PAGES = [*pages.PROJECT.glob("README*.md"), *pages.PROJECT.glob("docs/*.md"), pages.PROJECT / "CONTRIBUTING.md"]


def test_each_page_has_the_figures_of_the_run() -> None:
    written = pages.written(RUN)
    old = [page.name for page, text in written.items() if page.read_text("utf-8") != text]
    assert old == [], "run python -m benchmarks --from benchmarks/run.json --write"
    names = {name for text in written.values() for _, name, _, _ in pages.PLACE.findall(text)}
    assert names == {*pages.BLOCKS, *pages.FIGURES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_says_what_was_measured_in_words_of_its_own(page: Path) -> None:
    """It would go on to say it after the next run. Times of a race or a timetable are in blocks of their output."""
    text = re.sub(r"^```.*?^```", "", pages.PLACE.sub("", page.read_text("utf-8")), flags=re.M | re.S)
    assert re.findall(r"[\d.,]+ µs|\d\.\d+ ms|[\d,]+ (?:locks|sections|requests) per second", text) == []


def test_what_was_not_measured_is_said() -> None:
    """An interrupted run has no figures for the rest: those of another run would stand beside its own."""
    nothing = replace(RUN, cases=[])
    text = "".join(pages.written(nothing).values())
    found = {name: content.strip() for _, name, content, _ in pages.PLACE.findall(text)}
    assert {found[name] for name in pages.FIGURES} == {"?"}
    assert {found[name] for name in pages.BLOCKS if name != "aims"} == {pages.NOT_MEASURED}
    assert set(re.findall(r"\| (\S+) \| \S+ [\d.]+ \| (\S+) \|$", found["aims"], re.M)) == {("–", "–")}


def test_a_run_that_is_kept_gives_the_same_figures(tmp_path: Path) -> None:
    kept = tmp_path / "new" / "run.json"
    RUN.save(kept)
    assert kept.read_text("utf-8") == pages.RUN.read_text("utf-8")
    assert pages.written(Run.load_from(kept)) == pages.written(RUN)
