"""Every figure that was measured comes from one run, on whatever page it stands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.results import Run

RUN = Run.load_from(pages.RUN)
#: Times that were chosen, not measured.
CHOSEN = [
    "1 % and 2 ms",
    "102 ms of 10 s",
    "for 5 ms and think for 1 to 5 ms",
    "One lease and 100 ms",
    "again every 100 ms",
    "1% 和 2 毫秒",
    "每 100 毫秒重试一次",
]


def measured(text: str) -> list[str]:
    """Figures in words of its own. Times of a race or a timetable are in blocks of their output."""
    text = re.sub(r"^```.*?^```", "", pages.PLACE.sub("", text), flags=re.M | re.S)
    for words in CHOSEN:
        text = text.replace(words, "")
    return re.findall(r"[\d.,]+ (?:µs|ms\b|毫秒|微秒)|[\d,]+ (?:locks|sections|requests) per second", text)


def test_each_page_has_the_figures_of_the_run() -> None:
    written = pages.written(RUN)
    old = [page.name for page, text in written.items() if page.read_text("utf-8") != text]
    assert old == [], "run python -m benchmarks --from benchmarks/run.json --write"
    names = {name for text in written.values() for _, name, _, _ in pages.PLACE.findall(text)}
    assert names == {*pages.BLOCKS, *pages.FIGURES}


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_no_page_says_what_was_measured_in_words_of_its_own(page: Path) -> None:
    """It would go on to say it after the next run."""
    assert measured(page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("about 50 ms in all, and no request over 10 ms", ["50 ms", "10 ms"]),
        ("about 1.2 ms, 0.5 µs and 16,667 locks per second", ["1.2 ms", "0.5 µs", "16,667 locks per second"]),
        ("about <!-- bench of a page -->12 ms<!-- /bench -->", []),
        ("less a margin (1 % and 2 ms)\n```\n12 ms\n```\n", []),
    ],
)
def test_a_figure_of_its_own_is_found(text: str, found: list[str]) -> None:
    assert measured(text) == found


@pytest.mark.parametrize("words", CHOSEN)
def test_a_time_that_was_chosen_is_on_a_page(words: str) -> None:
    assert any(words in page.read_text("utf-8") for page in pages.PAGES)


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
