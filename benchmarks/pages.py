"""The figures of the documentation, from one run: the blocks of docs/benchmarks.md, and what other pages quote.

A block stands between ``<!-- bench NAME -->`` and ``<!-- /bench -->``, and so does a figure within a sentence. A test
looks whether all of them are those of benchmarks/run.json.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from . import report
from .contenders import OURS, HandOff, PythonRedisLock, Raw, RedisPy
from .inside import timeline
from .inside.floor import NAME as FLOOR
from .results import Case, Run, Spread
from .stores import STORES

PROJECT = Path(__file__).parents[1]
RUN = PROJECT / "benchmarks" / "run.json"
#: Where figures may stand.
PAGES = (*PROJECT.glob("README*.md"), *PROJECT.glob("docs/*.md"), PROJECT / "CONTRIBUTING.md")
PICTURE = PROJECT / "docs" / "pictures" / "hand-over.svg"
PLACE = re.compile(r"(<!-- bench ([\w ]+) -->)(.*?)(<!-- /bench -->)", re.S)
NOT_MEASURED = "*Not measured in this run.*"

Cells = Sequence[str]


def write(run: Run) -> list[Path]:
    """All figures anew, and the run beside them. Which pages were changed."""
    run.save(RUN)
    changed = []
    for page, text in written(run).items():
        if not page.exists() or page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")
            changed.append(page)
    return changed


def written(run: Run) -> Mapping[Path, str]:
    """Each page that has figures, with those of this run."""
    pages = {page: page.read_text("utf-8") for page in PAGES}
    found = {page: PLACE.sub(partial(_replaced, run), text) for page, text in pages.items() if PLACE.search(text)}
    try:
        found[PICTURE] = timeline.picture(run.case("timeline"))
    except KeyError:
        pass  # the picture stays as it is, and the page says that it is of no part of this run
    return found


def _replaced(run: Run, place: re.Match[str]) -> str:
    begin, name, _, end = place.groups()
    if name in FIGURES:
        try:
            return f"{begin}{FIGURES[name](run)}{end}"
        except KeyError:
            return f"{begin}?{end}"
    try:
        text = "\n".join(BLOCKS[name](run)).strip("\n")
    except KeyError:
        text = NOT_MEASURED
    return f"{begin}\n\n{text}\n\n{end}"


# How a number is written ---------------------------------------------------------------------------------------------


def number(value: float, digits: int = 0) -> str:
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def about(value: float) -> str:
    """With two digits that count."""
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    return number(round(value, digits), max(0, digits))


def around(spread: Spread) -> str:
    found = number(spread.median, 2)
    return found if spread.n < 2 else f"{found} ± {(spread.high - spread.low) / 2:.2f}"


def table(heads: Cells, rows: Iterator[Cells], *, words: bool = False) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{('---|' if words else '---:|') * (len(heads) - 1)}"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"
    yield ""


def notes(*cases: Case) -> Iterator[str]:
    """What failed and who was left out, each once."""
    for note in dict.fromkeys(note for case in cases for note in case.notes):
        yield f"- {note}\n"


def median(run: Run, case: str, measure: str, contender: str = OURS) -> float:
    return run.case(case).spread(contender, measure).median


def ratio(run: Run, case: str, measure: str, to: str = "", contender: str = OURS) -> Spread:
    return run.case(case).ratio(contender, measure, to)


# The blocks ----------------------------------------------------------------------------------------------------------


def _about(run: Run) -> Iterator[str]:
    rounds, crowd_rounds = (run.case(name).rounds() for name in ("1 thread", "32 waiters"))
    minutes = sum(run.seconds.values()) / 60
    load = f"The load of the machine before it was {run.load:.2f}."
    yield f"One run, of {run.begun}, of the commit `{run.commit}`: {minutes:.0f} minutes. {load} {run.about}\n"
    yield f"Medians of {rounds} rounds; where processes compete, of {crowd_rounds}; some tables name their own number."
    yield "A ratio is the median of the rounds' ratios, ± half the distance between the quartiles."


#: The columns of a free lock.
FREE = {
    "1 thread": "1 thread",
    "new keys": "1 thread, new keys",
    "8 threads": "8 threads",
    "1 task": "1 asyncio task",
    "64 tasks": "64 asyncio tasks",
}
#: The same peer in asyncio.
ASYNC_NAMES = {"redis.asyncio Lock": "redis-py Lock", "pottery AIORedlock": "pottery Redlock"}


def _free(run: Run) -> Iterator[str]:
    cases = {name: run.case(name) for name in FREE}
    cells: dict[str, dict[str, str]] = {}
    for name, case in cases.items():
        for contender in report.order(case):
            found = number(case.spread(contender, "time").median, 1)
            if contender != case.reference:
                found += f" ({around(case.ratio(contender, 'time'))})"
            cells.setdefault(ASYNC_NAMES.get(contender, contender), {})[name] = found
    rows = [[contender, *(row.get(name, "–") for name in FREE)] for contender, row in cells.items()]
    own = [around(case.ratio(OURS, "time", FLOOR)) for case in cases.values()]
    rows.append(["*distlock_web, as a multiple of our transport*", *own])
    yield from table(["µs (ratio to raw commands)", *FREE.values()], iter(rows))
    yield from notes(*cases.values())


def _parts(run: Run) -> Iterator[str]:
    case = run.case("parts")
    rows = (
        [part, *(number(case.spread(part, measure).median) for measure in ("instructions", "calls"))]
        for part in case.samples
    )
    yield from table(["part", "instructions", "calls"], rows)


def _server(run: Run) -> Iterator[str]:
    new, known = run.case("server, new names"), run.case("server, known name")

    def rows() -> Iterator[Cells]:
        for contender in report.order(new):
            found = [number(new.spread(contender, "commands").median)]
            for case in (new, known):
                found.append(
                    f"{number(case.spread(contender, 'CPU').median, 1)} ({around(case.ratio(contender, 'CPU'))})"
                )
            yield [contender, *found, number(new.spread(contender, "command time").median, 1)]

    heads = [
        "lock",
        "commands",
        "CPU µs, new names (ratio to redis-py's)",
        "CPU µs, one name (ratio)",
        "in commands µs",
    ]
    yield from table(heads, rows())
    yield from notes(new, known)


def _crowd(run: Run, name: str) -> Iterator[str]:
    case = run.case(name)
    plain = {"p99 ms": ("wait p99", 1), "longest ms": ("longest", 1), "requests": ("requests", 2)}
    plain |= {"commands": ("commands", 1), "server CPU µs": ("server CPU", 0), "client CPU µs": ("client CPU", 0)}
    plain |= {"stolen %": ("stolen", 1), "Jain": ("Jain", 3)}

    def rows() -> Iterator[Cells]:
        for contender in report.order(case):
            sections = f"{case.spread(contender, 'sections').median:.1f} ({around(case.ratio(contender, 'sections'))})"
            off = f"{number(case.spread(contender, 'hand-off').median)} ({around(case.ratio(contender, 'hand-off'))})"
            yield [
                contender,
                sections,
                off,
                *(number(case.spread(contender, measure).median, digits) for measure, digits in plain.values()),
            ]

    yield f"**{case.title}**\n"
    yield from table(["lock", "sections /s (ratio)", "hand-off µs (ratio)", *plain], rows())
    yield from notes(case)


def _handoff(run: Run) -> Iterator[str]:
    for size in (2, 8, 32):
        yield from _crowd(run, f"{size} waiters")


def _timeline(run: Run) -> Iterator[str]:
    case = run.case("timeline")

    def rows() -> Iterator[Cells]:
        for step in timeline.NAMES:
            yield [step, *(number(case.spread(name, step).median) for name in (OURS, HandOff.name))]

    yield "![Who has the lock's way when: releaser, server, waiter](pictures/hand-over.svg)\n"
    yield from table(["µs, medians", OURS, HandOff.name], rows())
    yield from notes(case)


def _fairness(run: Run) -> Iterator[str]:
    yield from _crowd(run, "no think")


def _network(run: Run) -> Iterator[str]:
    case = run.case("network, 1 thread")

    def rows() -> Iterator[Cells]:
        for contender in report.order(case):
            yield [contender, number(case.spread(contender, "time").median), around(case.ratio(contender, "time"))]

    yield f"**{case.title}.** {' '.join(case.notes)}\n"
    yield from table(["lock", "µs", "ratio"], rows())
    yield from _crowd(run, "network, 2 waiters")


def _recovery(run: Run) -> Iterator[str]:
    for case in [case for case in run.cases if case.name.startswith("recovery")] or [run.case("recovery")]:
        yield f"**{case.title}.** {case.rounds()} times.\n"

        def rows(case: Case = case) -> Iterator[Cells]:
            for contender in report.order(case):
                found = [number(case.spread(contender, measure).median, 1) for measure in ("p50", "longest", "gap")]
                yield [contender, *found, number(case.spread(contender, "unserved").median)]

        yield from table(["lock", "median ms", "longest ms", "longest gap after it ms", "unserved"], rows())
        yield from notes(case)


def _generic(run: Run, name: str) -> Iterator[str]:
    case = run.case(name)
    yield from report.markdown(case)


def _stores(run: Run) -> Iterator[str]:
    names = [store.case for store in STORES]
    cases = [case for case in run.cases if case.name in names]
    if not cases:
        raise KeyError("stores")

    def rows() -> Iterator[Cells]:
        for store in STORES:
            try:
                case = run.case(store.case)
            except KeyError:
                yield [store.name, *"––––"]  # a note says why
                continue
            own = number(case.spread(OURS, "time").median)
            for contender in report.order(case):
                if contender != OURS:
                    its = number(case.spread(contender, "time").median)
                    yield [store.name, own, contender, its, around(case.ratio(OURS, "time", contender))]

    yield from table(["store", "distlock_web µs", "beside", "its µs", "ratio"], rows())
    yield from notes(*cases)


def _sharing(run: Run) -> Iterator[str]:
    yield from _generic(run, "capacity, sharing")


def _capacity(run: Run) -> Iterator[str]:
    free, waiting, held = (run.case(f"capacity, {name}") for name in ("free locks", "waiting", "held"))

    def of(case: Case, measure: str, digits: int = 0) -> str:
        return number(case.spread(OURS, measure).median, digits)

    yield f"Measured once, with: {held.title}; {waiting.title}; {free.title[0].lower()}{free.title[1:]}.\n"
    rows: list[Cells] = [
        ["CPU of the server for a free lock, taken and released", f"{of(free, 'server CPU', 1)} µs"],
        ["locks per second on one core of Redis", of(free, "locks per server core")],
        ["bytes for a held lock, with its place in the listing", of(held, "bytes per lock")],
        ["bytes for a waiter", of(waiting, "bytes per waiter")],
        ["bytes of the server for a connection", of(waiting, "bytes per connection")],
        ["waiters that gave up", of(waiting, "unserved")],
        ["hand-overs per second, without any section", of(waiting, "hand-overs")],
        ["CPU of the server for such a hand-over", f"{of(waiting, 'server CPU')} µs"],
        ["renewals per second", of(held, "renewals")],
        ["requests for them per second", of(held, "requests", 1)],
        ["CPU of the server for them", f"{of(held, 'server CPU', 2)} % of a core"],
        ["a list of all held locks", f"{of(held, 'list all', 2)} s"],
        ["CPU of the server for a page of held locks", f"{of(held, 'page', 1)} ms"],
        ["the longest request of such a page", f"{of(held, 'longest request', 1)} ms"],
    ]
    yield from table(["", ""], iter(rows))


def _calculations(run: Run) -> Iterator[str]:
    """What follows for some sizes."""
    free, waiting, held = (run.case(f"capacity, {name}") for name in ("free locks", "waiting", "held"))
    lock = free.spread(OURS, "server CPU").median
    size, waiter = held.spread(OURS, "bytes per lock").median, waiting.spread(OURS, "bytes per waiter").median
    renewals, cpu = held.spread(OURS, "renewals").median, held.spread(OURS, "server CPU").median
    sections = run.case("32 waiters").spread(OURS, "sections").median
    threads, tasks = median(run, "8 threads", "time"), median(run, "64 tasks", "time")
    rows: list[Cells] = [
        [
            "a million locks a minute",
            f"16,667 per second × {lock:.1f} µs",
            f"{about(1e6 / 60 * lock / 1e4)} % of one core of Redis",
        ],
        [
            "the clients of these",
            f"16,667 × {threads:.0f} µs in threads, or × {tasks:.0f} µs in asyncio",
            f"{about(1e6 / 60 * threads / 1e6)} or {about(1e6 / 60 * tasks / 1e6)} cores of Python",
        ],
        ["100,000 locks that are held", f"100,000 × {number(size)} bytes", f"{about(size / 10)} MB"],
        [
            "all of them renewed, with an `expire` of 60 s",
            f"5,000 per second; {number(renewals)} take {cpu:.2f} % of a core",
            f"{about(cpu * 5000 / renewals)} % of one core",
        ],
        ["1,000 waiters for one lock", f"1,000 × {number(waiter)} bytes", f"{about(waiter / 1000)} MB"],
        [
            "one lock that everybody wants, sections of 5 ms",
            "one after the other",
            f"{about(sections)} sections per second",
        ],
    ]
    yield from table(["", "calculation", ""], iter(rows), words=True)


def _processes(run: Run) -> Iterator[str]:
    """At most so many connections: one for each thread, one to listen on, one for renewals."""
    threads, default = 4, 10_000
    waiting = run.case("capacity, waiting")
    each = waiting.spread(OURS, "bytes per connection").median
    sizes = (1_000, 10_000)
    connections = [size * (threads + 2) for size in sizes]
    rows: list[Cells] = [
        [f"connections at most: {threads} + 1 + 1 each", *map(number, connections)],
        [f"memory for them, {number(each)} bytes each", *(f"{about(count * each / 1e6)} MB" for count in connections)],
        [
            f"Redis's default `maxclients` {number(default)}",
            *("enough" if count <= default else "**breaks first**" for count in connections),
        ],
    ]
    yield from table(["", *(f"{number(size)} processes of {threads} threads" for size in sizes)], iter(rows))


def _limits(run: Run) -> Iterator[str]:
    one = median(run, "capacity, waiting", "hand-overs")
    server = median(run, "capacity, free locks", "locks per server core")
    threads, tasks = median(run, "8 threads", "time"), median(run, "64 tasks", "time")
    clients = f"{about(1e6 / threads)} (threads) to {about(1e6 / tasks)} (asyncio) locks per second and core"
    rows: list[Cells] = [
        [
            "one hot key",
            f"{about(one)} sections per second that take no time",
            "finer keys; shorter sections; `wait=0` and a 409",
        ],
        ["the clients' CPU", clients, "asyncio; more web machines"],
        ["`maxclients`", "10,000 connections", "raise it; fewer threads for each process"],
        [
            "the core of Redis",
            f"{about(server)} locks per second",
            'Cluster, or a second store by alias: `store="orders"`',
        ],
        ["memory", "millions of held locks", "hold locks for a shorter time"],
    ]
    yield from table(["", "at about", "what to do"], iter(rows), words=True)


# What we want it to be -----------------------------------------------------------------------------------------------


def _crowd_cpu(run: Run) -> Spread:
    return ratio(run, "8 waiters", "server CPU", PythonRedisLock.name)


Value = Callable[[Run], Spread]
#: What is measured, which of it, the bar, and whether it is the least that is wanted and not the most.
AIMS: Sequence[tuple[str, Value, float, bool]] = (
    *(
        (
            f"hand-over, {size} processes, × {HandOff.name}",
            partial(ratio, case=f"{size} waiters", measure="hand-off"),
            1.35,
            False,
        )
        for size in (2, 8, 32)
    ),
    *(
        (
            f"sections, {size} processes, × {HandOff.name}",
            partial(ratio, case=f"{size} waiters", measure="sections"),
            0.95,
            True,
        )
        for size in (8, 32)
    ),
    ("contended section: CPU of the server, × python-redis-lock", _crowd_cpu, 1.0, False),
    ("contended section: commands", lambda run: run.case("8 waiters").spread(OURS, "commands"), 18, False),
    *(
        (f"free lock, {column}, × {Raw.name}", partial(ratio, case=name, measure="time"), bar, False)
        for (name, column), bar in zip(FREE.items(), (1.0, 1.1, 0.7, 0.85, 0.4), strict=True)
    ),
    (
        f"free lock: CPU of the server, × {RedisPy.name}",
        partial(ratio, case="server, new names", measure="CPU"),
        1.2,
        False,
    ),
    ("Redlock, × the plain quorum", partial(ratio, case=STORES[0].case, measure="time", to="plain quorum"), 2.5, False),
)


def _aims(run: Run) -> Iterator[str]:
    def rows() -> Iterator[Cells]:
        for what, value, bar, least in AIMS:
            try:
                found = value(run)
            except KeyError:
                yield [what, "–", f"{'≥' if least else '≤'} {bar:g}", "–"]
                continue
            shown = round(found.median, 2)  # "1.00 | ≤ 1 | no" would look wrong
            reached = shown >= bar if least else shown <= bar
            yield [what, around(found), f"{'≥' if least else '≤'} {bar:g}", "yes" if reached else "no"]

    yield from table(["", "measured", "aim", "reached"], rows())


BLOCKS: Mapping[str, Callable[[Run], Iterator[str]]] = {
    "run": _about,
    "free": _free,
    "parts": _parts,
    "server": _server,
    "network": _network,
    "handoff": _handoff,
    "timeline": _timeline,
    "fairness": _fairness,
    "recovery": _recovery,
    "renewal": partial(_generic, name="renewal"),
    "view": partial(_generic, name="view"),
    "stores": _stores,
    "sharing": _sharing,
    "capacity": _capacity,
    "calculations": _calculations,
    "processes": _processes,
    "limits": _limits,
    "aims": _aims,
}

# What sentences quote ------------------------------------------------------------------------------------------------


def _microseconds_of_a_reader(run: Run) -> str:
    """Each entry looks at all readers. (A release beside so many looks at none.)"""
    few, many = (median(run, "capacity, sharing", "server CPU", f"shared, beside {n} readers") for n in (0, 1000))
    return f"{about(max(0.01, many - few) / 1000)} µs"


FIGURES: Mapping[str, Callable[[Run], str]] = {
    "of a reader": _microseconds_of_a_reader,
    "of a page": lambda run: f"{about(median(run, 'capacity, held', 'page'))} ms",
    "request of a page": lambda run: f"{about(median(run, 'capacity, held', 'longest request'))} ms",
    "in a thread": lambda run: f"{median(run, '8 threads', 'time') / 1000:.2f} ms",
    "confirmed": lambda run: f"{median(run, STORES[1].case, 'time') / 1000:.2f} ms",
    "unconfirmed": lambda run: f"{median(run, STORES[1].case, 'time', 'without `min_replicas`') / 1000:.2f} ms",
}
