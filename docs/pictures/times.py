"""Draws what happens when, as SVG: ``python docs/pictures/times.py`` writes the four files beside this one.

Each picture is a list of lanes, and a lane is a list of spans. Colours follow the reader's light or dark mode.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

UNIT = 56  # pixels of a step of time
LEFT, TOP, LANE, BAR = 132, 16, 52, 30

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.lane { font-weight: 600 } .line { stroke: #d0d7de }
.run { fill: #0f766e } .lock { fill: #b45309 } .wait { fill: #e5e7eb; stroke: #6b7280; stroke-dasharray: 4 3 }
.no { fill: #b91c1c } .kept { fill: #4338ca } .run + text, .lock + text, .no + text, .kept + text { fill: #fff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .line { stroke: #3d444d } .wait { fill: #2d333b; stroke: #8b949e }
}
"""


class Span(NamedTuple):
    begin: float
    end: float
    kind: str  #: run, lock, wait, no or kept: a class of STYLE
    text: str


class Picture(NamedTuple):
    title: str
    lanes: dict[str, list[Span]]


PICTURES = {
    "time-409": Picture(
        "A second click while the first runs: 409 at once",
        {
            "first click": [Span(0, 7, "run", "the view runs, and answers 200")],
            "the lock": [Span(0, 7, "lock", "held by the first click")],
            "second click": [Span(3, 4, "no", "409")],
        },
    ),
    "time-queue": Picture(
        "With wait=3 the second click queues, and the release hands the lock over",
        {
            "first click": [Span(0, 4, "run", "the view runs")],
            "the lock": [Span(0, 4, "lock", "held by the first"), Span(4, 9, "lock", "held by the second")],
            "second click": [Span(2, 4, "wait", "waits"), Span(4, 9, "run", "the view runs, and answers 200")],
        },
    ),
    "time-once": Picture(
        "With once the later click gets the first one's answer, and the view does not run",
        {
            "first click": [Span(0, 4, "run", "the view runs: 201")],
            "the store": [Span(0, 4, "lock", "held"), Span(4, 10, "kept", "the answer is kept for 24 h")],
            "second click": [Span(6, 8, "run", "the same 201")],
        },
    ),
    "time-commit": Picture(
        'With until="commit" the lock outlives the transaction',
        {
            "the lock": [Span(0, 10, "lock", "held; extended before the COMMIT")],
            "transaction": [Span(1, 8, "kept", "BEGIN … COMMIT")],
            "the view": [Span(1.5, 6, "run", "runs, and returns")],
            "on_commit": [Span(8, 9.5, "run", "hooks")],
        },
    ),
}


def drawn(picture: Picture) -> str:
    width = LEFT + round(UNIT * max(span.end for spans in picture.lanes.values() for span in spans)) + 16
    height = TOP + LANE * len(picture.lanes) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    for row, (name, spans) in enumerate(picture.lanes.items()):
        middle = TOP + LANE * row + BAR // 2
        parts += [
            f'<line class="line" x1="{LEFT}" x2="{width - 8}" y1="{middle}" y2="{middle}"/>',
            f'<text class="lane" x="8" y="{middle + 5}">{escape(name)}</text>',
        ]
        for span in spans:
            x, length = LEFT + UNIT * span.begin, UNIT * (span.end - span.begin)
            box = f'x="{x + 1:g}" y="{middle - BAR // 2}" width="{length - 2:g}" height="{BAR}" rx="4"'
            parts += [
                f'<rect class="{span.kind}" {box}/>',
                f'<text x="{x + length / 2:g}" y="{middle + 5}" text-anchor="middle">{escape(span.text)}</text>',
            ]
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    for name, picture in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(drawn(picture), "utf-8")


if __name__ == "__main__":
    main()
