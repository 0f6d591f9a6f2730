"""``make simulate``: many seeds, or one again.

A seed names a scenario and a number: ``memory-4711``. With the same sources, and the same minor version of Python,
it does the same again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from .scenario import Result, run
from .scenarios import SCENARIOS

#: Seeds that one process runs before it says how it was.
CHUNK = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", help="run this one again: memory-4711")
    parser.add_argument("--seeds", type=int, default=2000, help="how many, of each scenario")
    parser.add_argument("--begin", type=int, default=0, help="the number of the first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other seeds after that")
    parser.add_argument("--only", choices=list(SCENARIOS), action="append", help="this scenario, not all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--before", type=int, default=0, help="with --seed: run so many others before it")
    options = parser.parse_args()
    if options.seed:
        kind, _, number = options.seed.rpartition("-")
        for other in range(options.before):
            run(SCENARIOS[kind], other)
        found = run(SCENARIOS[kind], int(number))
        _tell(kind, found)
        print(f"{found.turns} turns, {found.sections} sections in {found.seconds:.3f} s of its time: {found.digest:x}")
        return bool(found.violations)
    return _many(options)


def _many(options: argparse.Namespace) -> int:
    begun, results, failures = time.monotonic(), dict[str, list[Result]](), 0
    chunks = _chunks(options.only or list(SCENARIOS), range(options.begin, options.begin + options.seeds))
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = [(kind, pool.submit(_chunk, kind, seeds, begun + options.seconds)) for kind, seeds in chunks]
        for kind, future in waiting:
            for result in future.result():
                results.setdefault(kind, []).append(result)
                failures += _tell(kind, result)
    seconds = time.monotonic() - begun
    for kind, those in results.items():
        turns, sections = sum(each.turns for each in those), sum(each.sections for each in those)
        hours = sum(each.seconds for each in those) / 3600
        print(f"{kind}: {len(those)} seeds, {sections} sections, {turns} turns, {hours:.1f} h of their time")
    print(f"{failures} violations in {seconds:.0f} s")
    return bool(failures)


def _chunks(kinds: list[str], seeds: range) -> Iterator[tuple[str, range]]:
    for first in range(seeds.start, seeds.stop, CHUNK):
        for kind in kinds:
            yield kind, range(first, min(first + CHUNK, seeds.stop))


def _chunk(kind: str, seeds: range, until: float) -> list[Result]:
    return [run(SCENARIOS[kind], seed) for seed in seeds if seed == 0 or time.monotonic() < until]


def _tell(kind: str, result: Result) -> int:
    for violation in result.violations[:3]:
        print(f"make simulate SEED={kind}-{result.seed}   # {violation}", flush=True)
    return len(result.violations)


if __name__ == "__main__":
    sys.exit(main())
