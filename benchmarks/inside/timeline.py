"""One hand-over between two processes, step by step, beside BLPOP's; and the picture of it.

It begins with the call of the release in one process, and ends where the other's acquire returns.
Both processes note the time at a few points of their way. They share one clock.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import redis

from distlock_web.backends.redis.transport import listener, pool, subscription

from ..contenders import Contender, Distlock, HandOff
from ..crowd import SECTION, clock
from ..handoff import THINK
from ..plan import Bench, in_turns
from ..processes import Processes
from ..results import Case, Measure

#: The steps in their order: what each is, on whose side, and the point at which it ends.
STEPS: Sequence[tuple[str, str, str]] = (
    ("release is called, until it is sent", "releaser", "sent"),
    ("kernel, server, kernel", "server", "heard"),
    ("the waiter reads and believes it", "waiter", "woken"),
    ("until its acquire returns", "waiter", "got"),
)
SCRIPT, TOTAL = "in it: the server's command", "in all"
NAMES = (*(name for name, _, _ in STEPS), TOTAL, SCRIPT)
MEASURES = tuple(Measure(name, "µs", 0, compared=name == TOTAL) for name in NAMES)


@dataclass
class Turn:
    """When one waiter asked for the lock, what it passed on its way, and when it had it and gave it back."""

    waiter: int
    asked: float
    points: dict[str, float] = field(default_factory=dict)  #: the last time at each


class Way:
    """Of one process: where it notes its points. One thread works there."""

    def __init__(self) -> None:
        self.points: dict[str, float] = {}

    def note(self, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        points = self.points

        def noted(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                points[point] = clock()

        return noted

    def ours(self) -> None:
        """Note what distlock_web does: of each class that it makes from now on."""
        self._wires(pool, "sent", "answered")
        self._wires(subscription, "", "heard")
        deliver = listener.Listener._deliver
        listener.Listener._deliver = self.note("woken", deliver)  # type: ignore[method-assign]

    def _wires(self, module: Any, sent: str, heard: str) -> None:
        make = module.wire_of

        def wire_of(*args: Any) -> _Noting:
            wire = make(*args)
            return _Noting(self.note(sent, wire.write), self.note(heard, wire.read))

        module.wire_of = wire_of

    def redis_py(self) -> None:
        """The same of redis-py's connections."""
        kind: Any = redis.Connection
        kind.send_packed_command = self.note("sent", kind.send_packed_command)
        kind.read_response = self.note("heard", kind.read_response)


@dataclass
class _Noting:
    write: Callable[..., Any]
    read: Callable[..., Any]


def run(bench: Bench) -> Iterator[Case]:
    kinds: Sequence[type[Contender]] = (HandOff, Distlock)
    bench.expect(len(kinds) * bench.plan.crowd_rounds)
    case = Case("timeline", "A hand-over with 2 processes, step by step", MEASURES, HandOff.name)
    with redis.Redis.from_url(bench.server.url) as admin:
        for kind in in_turns(kinds, bench.plan.crowd_rounds):
            admin.flushall()
            key = f"order:{random.randrange(10**8):08d}"
            kind(bench.server.url).prepare(key)
            with Processes(2, _compete, kind, bench.server.url, key, bench.plan.window) as both:
                list(both.hear())  # connected
                both.tell("go")
                time.sleep(bench.plan.window / 2)
                script = _command(admin, bench.plan.window / 4)
                turns = sorted((turn for of_one in both.hear() for turn in of_one), key=lambda turn: turn.points["got"])
            case.add(kind.name, **_steps(turns), **{SCRIPT: script})
            bench.step(f"timeline: {kind.name}")
    yield case


def _steps(turns: Sequence[Turn]) -> dict[str, float]:
    """The medians of the hand-overs for which the next one waited."""
    found: dict[str, list[float]] = {name: [] for name in (*(name for name, _, _ in STEPS), TOTAL)}
    for turn, following in pairwise(turns):
        if following.waiter == turn.waiter or following.points.get("heard", 0.0) < turn.points["release"]:
            continue  # it asked after the release
        times = [turn.points["release"], turn.points["released"]]
        times += [following.points.get(point, following.points["heard"]) for _, _, point in STEPS[1:]]
        for (name, _, _), (begin, end) in zip(STEPS, pairwise(times), strict=True):
            found[name].append((end - begin) * 1e6)
        found[TOTAL].append((times[-1] - times[0]) * 1e6)
    return {name: statistics.median(each) for name, each in found.items()}


def _command(admin: redis.Redis, seconds: float) -> float:
    """Microseconds in the command that hands the lock over: the median of RPUSH, or of RELEASE, our shorter call."""
    admin.config_set("slowlog-max-len", 10_000)
    admin.config_set("slowlog-log-slower-than", 0)
    admin.slowlog_reset()
    time.sleep(seconds)
    seen = admin.slowlog_get(10_000)
    admin.config_set("slowlog-log-slower-than", -1)
    pushes = [entry["duration"] for entry in seen if entry["command"].startswith(b"RPUSH")]
    calls = [entry for entry in seen if entry["command"].startswith(b"EVALSHA")]
    fewest = min((len(entry["command"].split()) for entry in calls), default=0)
    releases = [entry["duration"] for entry in calls if len(entry["command"].split()) == fewest]
    return statistics.median(pushes or releases or [0])


def _compete(line: Connection, number: int, kind: type[Contender], url: str, key: str, seconds: float) -> None:
    way = Way()
    if kind is HandOff:
        way.redis_py()
    else:
        way.ours()
    contender = kind(url)
    turns = []
    line.send("connected")
    line.recv()
    until = clock() + seconds
    while (asked := clock()) < until:
        lock = contender.lock(key)
        way.points.clear()
        lock.__enter__()
        turn = Turn(number, asked, {**way.points, "got": clock()})
        time.sleep(SECTION)
        turn.points["release"] = clock()
        lock.__exit__(None, None, None)
        turn.points["released"] = way.points["sent"]
        turns.append(turn)
        time.sleep(random.uniform(*THINK))
    line.send(turns)
    contender.close()


# The picture ---------------------------------------------------------------------------------------------------------

WIDTH, LEFT, LANE, BAR = 860, 150, 26, 18
LANES = ("releaser", "server", "waiter")
COLOURS = {"releaser": "#4c78a8", "server": "#b8860b", "waiter": "#2e8b57"}
STYLE = """text{font:13px sans-serif;fill:#333}.t{font-weight:bold}line{stroke:#999}
@media(prefers-color-scheme:dark){text{fill:#ddd}line{stroke:#777}}"""


def picture(case: Case) -> str:
    """Two time lines on one scale: the steps of each, on the lane of whoever they take the time of."""
    whole = max(case.spread(name, TOTAL).median for name in case.samples)
    scale = (WIDTH - LEFT - 60) / whole
    shapes: list[str] = []
    top = 10
    for name in (Distlock.name, HandOff.name):
        steps = {step: case.spread(name, step).median for step, _, _ in STEPS}
        shapes.append(f'<text class="t" x="8" y="{top + 14}">{name}: {case.spread(name, TOTAL).median:.0f} µs</text>')
        top += 22
        shapes += _lanes(steps, case.spread(name, SCRIPT).median, top, scale)
        top += LANE * len(LANES) + 16
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *shapes, "</svg>", ""])


def _lanes(steps: Mapping[str, float], script: float, top: int, scale: float) -> Iterator[str]:
    """One after the other, as the steps are."""
    begin = 0.0
    for number, lane in enumerate(LANES):
        y, own = top + number * LANE, {name: steps[name] for name, whose, _ in STEPS if whose == lane}
        bar = partial(_bar, y=y, scale=scale, colour=COLOURS[lane])
        label = " + ".join(f"{taken:.0f}" for taken in own.values())
        yield f'<text x="8" y="{y + 14}">{lane}</text>'
        yield f'<line x1="{LEFT}" y1="{y + BAR}" x2="{WIDTH - 40}" y2="{y + BAR}"/>'
        for name, taken in own.items():
            yield bar(begin, taken, f"{name}: {taken:.0f} µs", opacity=0.55 if lane == "server" else 1)
            begin += taken
        if lane == "server":  # the command is somewhere in it: in the middle
            yield bar(begin - (sum(own.values()) + script) / 2, script, f"{SCRIPT}: {script:.0f} µs")
            label += f", in it {script:.0f}"
        yield f'<text x="{LEFT + begin * scale + 4:.1f}" y="{y + 14}">{label}</text>'


def _bar(begin: float, taken: float, title: str, *, y: int, scale: float, colour: str, opacity: float = 1) -> str:
    x, width = LEFT + begin * scale, max(1.0, taken * scale)
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}" fill-opacity="{opacity}">'
        f"<title>{title}</title></rect>"
    )
