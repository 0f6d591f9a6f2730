"""The ratios of a run as an SVG: a dot for each lock, a line for its quartiles, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from .contenders import OURS
from .results import Case, Spread

#: Which ratios tell the story: case, measure, what it says.
PANELS = (
    ("1 thread", "time", "Free lock, 1 thread: time"),
    ("8 threads", "time", "Free locks, 8 threads: time"),
    ("64 tasks", "time", "Free locks, 64 asyncio tasks: time"),
    ("server, new names", "command time", "Free lock: the server's time in commands"),
    ("server, new names", "CPU", "Free lock: the server's CPU"),
    ("8 waiters", "hand-off", "8 processes: hand-off latency"),
    ("32 waiters", "longest", "32 processes: longest wait"),
    ("renewal", "CPU", "1,000 renewed leases: CPU"),
    ("view", "added", "Django view: time added"),
)
WIDTH, NAMES, LINE, GAP, TOP = 760, 190, 20, 34, 12
FROM, TO = 0.2, 300.0  #: the axis
TICKS = (0.5, 1, 2, 5, 10, 30, 100)

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 } .quiet { fill: #6e7781 }
.grid { stroke: #d0d7de } .one { stroke: #6e7781 } .peer { stroke: #8c959f; fill: #8c959f }
.ours { stroke: #0969da; fill: #0969da } text.ours { stroke: none; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #8d96a0 } .grid { stroke: #30363d } .ours { stroke: #4493f8; fill: #4493f8 }
}
"""


def svg(cases: Sequence[Case]) -> str:
    """The chart, for the cases that were run."""
    by_name = {case.name: case for case in cases}
    parts: list[str] = []
    y = TOP
    for name, measure, title in PANELS:
        case = by_name.get(name)
        if case is not None:
            dots = _ratios(case, measure)
            parts += _panel(y, title, case.reference, dots)
            y += GAP + LINE * (len(dots) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">'
        f"<title>Locks compared: ratios to the least that could be sent, less is better</title>"
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _ratios(case: Case, measure: str) -> list[tuple[str, Spread]]:
    """Each contender but the reference, the best first; what has no ratio has no dot."""
    found = [(name, case.ratio(name, measure)) for name in case.samples if name != case.reference]
    return sorted((dot for dot in found if dot[1].median > 0), key=lambda dot: dot[1].median)


def _panel(y: int, title: str, reference: str, dots: Sequence[tuple[str, Spread]]) -> Iterator[str]:
    bottom = y + LINE * (len(dots) + 1)
    yield f'<text class="title" x="0" y="{y + 8}">{escape(title)}</text>'
    yield f'<text class="quiet" x="{WIDTH}" y="{y + 8}" text-anchor="end">× {escape(reference)}</text>'
    for tick in TICKS:
        kind = "one" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{_x(tick):.0f}" x2="{_x(tick):.0f}" y1="{y + 14}" y2="{bottom}"/>'
        yield f'<text class="quiet" x="{_x(tick):.0f}" y="{bottom + 13}" text-anchor="middle">{tick:g}</text>'
    for row, (name, spread) in enumerate(dots, start=1):
        middle = y + LINE * row + 6
        kind = "ours" if name.startswith(OURS) else "peer"
        label = f'x="{NAMES - 10}" y="{middle + 4}" text-anchor="end"'
        yield f'<text class="{"ours" if kind == "ours" else ""}" {label}>{escape(name)}</text>'
        yield f'<line class="{kind}" x1="{_x(spread.low):.1f}" x2="{_x(spread.high):.1f}" y1="{middle}" y2="{middle}"/>'
        yield f'<circle class="{kind}" cx="{_x(spread.median):.1f}" cy="{middle}" r="4"/>'
        yield f'<text class="quiet" x="{_x(spread.high) + 10:.1f}" y="{middle + 4}">{_short(spread.median)}</text>'


def _x(ratio: float) -> float:
    share = math.log(min(max(ratio, FROM), TO) / FROM) / math.log(TO / FROM)
    return NAMES + share * (WIDTH - NAMES - 60)


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"
