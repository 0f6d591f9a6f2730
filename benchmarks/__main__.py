"""``python -m benchmarks``: runs the scenarios, and prints their tables."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import redis
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from distlock_web.testing.servers import RedisServer, ServerMissing

from . import (
    capacity,
    handoff,
    network,
    pages,
    recovery,
    renewal,
    report,
    server,
    stores,
    uncontended,
    view,
)
from .inside import parts, timeline
from .plan import FULL, QUICK, Plan
from .results import Run

#: Those first that most depends on.
SCENARIOS = {
    "uncontended": uncontended,
    "handoff": handoff,
    "timeline": timeline,
    "server": server,
    "network": network,
    "parts": parts,
    "stores": stores,
    "capacity": capacity,
    "view": view,  # from here on every lock asks Django's hooks
    "renewal": renewal,
    "recovery": recovery,
}
KEPT = Path("build") / "bench.json"
NOT_QUICK = "A quick run is for a look, with other amounts than the documentation names: --write takes a full one."

ABOUT = """\
Measures distlock_web beside other locks: all in one run, in turns, on one Redis that is started for it.

scenarios:
  uncontended  a free lock: one thread on one CPU, 8 threads, 1 and 64 asyncio tasks
  handoff      2, 8 and 32 processes that want one lock
  timeline     a hand-over between two of them, step by step
  server       a free lock as the server sees it: commands, CPU
  network      the first two with half a millisecond of network
  parts        where the work of a lock in asyncio is
  view         a Django view under a lock
  stores       a free lock in Redlock, PostgreSQL, MariaDB, SQLite and ZooKeeper, beside what their users take
  capacity     what one server holds: 100,000 locks, 200 processes that wait, 1,000 readers
  renewal      1,000 leases that are renewed
  recovery     the holder is killed: 16 processes wait, or 4 with 50 threads each
"""
MORE = f"""\
examples:
  python -m benchmarks --quick                        a first look, in some minutes
  python -m benchmarks --only uncontended             one scenario in full
  python -m benchmarks --write                        all, for half an hour, and then into the documentation
  python -m benchmarks --from {KEPT} --write   the same of a run that is kept, also of one that was interrupted

A ratio compares a lock with the reference of its table in the same round. Close other programs: what else runs on the
machine is in the numbers, and most of all in those of the processes that wait for each other. Peers that are not
installed are left out (pip install --group bench). What was measured is kept in {KEPT} after each scenario. Exit
status: 1 if something could not be measured; the tables are of the rest.
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=ABOUT,
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="run this scenario; may be given again")
    parser.add_argument("--quick", action="store_true", help="few and short rounds: for a look, not for a claim")
    parser.add_argument("--save", type=Path, default=KEPT, metavar="FILE", help=f"where the run is kept: {KEPT}")
    parser.add_argument(
        "--from", dest="kept", type=Path, metavar="FILE", help="measure nothing: the tables of this run"
    )
    parser.add_argument("--write", action="store_true", help="put the figures into the documentation")
    given = parser.parse_args()
    if given.write and given.quick:
        parser.error(NOT_QUICK)
    return given


class Session:
    """One run, as the scenarios see it (:class:`benchmarks.plan.Bench`)."""

    def __init__(self, server: RedisServer, plan: Plan, progress: Progress) -> None:
        self.server = server
        self.plan = plan
        self._progress = progress
        self._task = progress.add_task("")

    def begin(self, scenario: str) -> None:
        self._progress.reset(self._task, total=None, description=scenario)

    def expect(self, steps: int) -> None:
        self._progress.update(self._task, total=steps)
        self._progress.refresh()

    def step(self, what: str) -> None:
        self._progress.update(self._task, advance=1, description=what)
        self._progress.refresh()


def main() -> None:
    given = arguments()
    failed: list[str] = []
    run = Run.load_from(given.kept) if given.kept else measured(given, failed)
    if not run.cases:
        sys.exit(f"Nothing was measured: {', '.join(failed)}.")
    print(run.about, end="\n\n")
    for case in run.cases:
        print(*report.markdown(case), sep="\n")
    if given.write:
        if run.quick:
            sys.exit(NOT_QUICK)
        for page in pages.write(run):
            print(f"written: {page}", file=sys.stderr)
    if failed:
        sys.exit(f"Not measured: {', '.join(failed)}.")


def measured(given: argparse.Namespace, failed: list[str]) -> Run:
    """A run, kept after each scenario. Those that ``failed`` are named."""
    # It draws when a step is done, not from a thread of its own, which would be in the measurement.
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    run = Run(time.strftime("%d %B %Y, %H:%M %Z"), commit(), "", os.getloadavg()[0], given.quick)
    try:
        with RedisServer() as redis_server:
            with redis.Redis.from_url(redis_server.url) as client:
                run.about = report.machine(client.info("server")["redis_version"])
            with progress:
                session = Session(redis_server, QUICK if given.quick else FULL, progress)
                for name in dict.fromkeys(given.only or SCENARIOS):
                    session.begin(name)
                    since = time.monotonic()
                    try:
                        for case in SCENARIOS[name].run(session):
                            run.cases.append(case)
                    except Exception:  # an hour of others is not lost with it
                        failed.append(name)
                        progress.console.print_exception()
                    run.seconds[name] = round(time.monotonic() - since, 1)
                    run.save(given.save)
    except ServerMissing as missing:
        sys.exit(str(missing))
    except KeyboardInterrupt:
        failed.append("the rest, which was interrupted")
        run.save(given.save)
    return run


def commit() -> str:
    """Which one is measured; with a mark, if the package differs from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            cwd=pages.PROJECT,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


if __name__ == "__main__":
    main()
