"""``python -m benchmarks``: runs the scenarios, and prints their tables."""

from __future__ import annotations

import argparse
import sys

import redis
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from distlock_web.testing.servers import RedisServer, ServerMissing

from . import (
    capacity,
    handoff,
    recovery,
    renewal,
    report,
    server,
    stores,
    uncontended,
    view,
)
from .plan import FULL, QUICK, Plan
from .results import Case

SCENARIOS = {
    "uncontended": uncontended,
    "server": server,
    "handoff": handoff,
    "recovery": recovery,
    "renewal": renewal,
    "view": view,
    "stores": stores,
    "capacity": capacity,
}

ABOUT = """\
Measures distlock_web beside other locks: all in one run, in turns, on one Redis that is started for it.

scenarios:
  uncontended  a free lock: one thread on one CPU, 8 threads, 64 asyncio tasks
  server       the same, as the server sees it: commands, CPU, what is left of names
  handoff      2, 8 and 32 processes that want one lock
  recovery     the holder is killed: 16 processes wait, or 4 with 50 threads each
  renewal      1,000 leases that are renewed
  view         a Django view under a lock
  stores       a free lock in Redlock, PostgreSQL, MariaDB, SQLite and ZooKeeper, beside what their users take
  capacity     what one server holds: 100,000 locks, 400 processes that wait
"""
MORE = """\
examples:
  python -m benchmarks --quick                        a first look, in about six minutes
  python -m benchmarks --only uncontended             one scenario in full
  python -m benchmarks > run.md                       the tables behind docs/benchmarks.md

A ratio compares a lock with the reference of its table in the same round. Close other programs: what else runs on the
machine is in the numbers, and most of all in those of the processes that wait for each other. Peers that are not
installed are left out (pip install --group bench). Exit status: 1 if something could not be measured; the tables are
of the rest.
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
    return parser.parse_args()


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
    # It draws when a step is done, not from a thread of its own, which would be in the measurement.
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
    cases: list[Case] = []
    failed: list[str] = []
    try:
        with RedisServer() as redis_server:
            with redis.Redis.from_url(redis_server.url) as client:
                about = report.machine(client.info("server")["redis_version"])
            with progress:
                session = Session(redis_server, QUICK if given.quick else FULL, progress)
                for name in dict.fromkeys(given.only or SCENARIOS):
                    session.begin(name)
                    try:
                        for case in SCENARIOS[name].run(session):
                            cases.append(case)
                    except Exception:  # an hour of others is not lost with it
                        failed.append(name)
                        progress.console.print_exception()
    except ServerMissing as missing:
        sys.exit(str(missing))
    except KeyboardInterrupt:
        failed.append("the rest, which was interrupted")
    if not cases:
        sys.exit(f"Nothing was measured: {', '.join(failed)}.")
    print(about, end="\n\n")
    for case in cases:
        print(*report.markdown(case), sep="\n")
    if failed:
        sys.exit(f"Not measured: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
