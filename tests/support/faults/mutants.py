"""Mends taken back, each with the combinations that find it: what one fault at every step can find, it has to find.

None is of Redlock: one fault costs one vote, which a majority does without. ``tests/support/simulation`` has those.

``python -m tests.support.faults.mutants`` looks for combinations anew; ``--only NAME``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import distlock_web

from .__main__ import chosen
from .steps import Combination
from .table import Found, try_one, try_way

_SCRIPTS, _QUEUE = "backends/redis/scripts", "backends/zookeeper/lock_queue.py"


class Mutant(NamedTuple):
    """``found_by``: combinations, each of which does. ``changes``: by file, what stands there once, what instead."""

    found_by: Sequence[str]
    changes: Mapping[str, Sequence[tuple[str, str]]]


MUTANTS: dict[str, Mutant] = {
    "a deadline is counted from the answer, not from the request": Mutant(
        [
            "redis/threads/free/a:acquire#1/stopped",
            "sentinel/asyncio/free/a:acquire#1/stopped",
            "cluster/threads/free/a:acquire#1/stopped",
        ],
        {"locks/hold.py": [("self.deadline = granted.since + claim.expire", "self.deadline = now() + claim.expire")]},
    ),
    "a grant is counted from when it was read": Mutant(
        ["redis/threads/handed/a:<message#1/stopped"],
        {
            "backends/redis/transport/waiter.py": [
                ("since = max(self.sent_at, min(self.sent_at + passed * 0.99, news.last_empty_poll))", "since = now()")
            ]
        },
    ),
    "anybody may release a lock": Mutant(
        ["redis/threads/handed/b:release#1/late"],
        {f"{_SCRIPTS}/release.lua": [("local lost = loss(lock, token)", "local lost = lock and 0 or 1")]},
    ),
    "in memory anybody may release a lock": Mutant(
        ["memory/threads/handed/b:release#1/late"],
        {
            "backends/memory.py": [
                (
                    "            owner = self._owner(lock, claim.token)\n"
                    "            if owner is None:\n"
                    "                return None if lock.former",
                    "            owner = next(iter(lock.owners.values()), None)\n"
                    "            if owner is None:\n"
                    "                return None if lock.former",
                )
            ]
        },
    ),
    "in Redis a renewal is written over a longer extension": Mutant(
        ["redis/threads/extend-renewed/a:extend#1/slow"],
        {
            f"{_SCRIPTS}/extend.lua": [
                ("if lost == 0 and call('PTTL', name) < tonumber(expire) then", "if lost == 0 then")
            ]
        },
    ),
    "what is done is free again": Mutant(
        ["redis/threads/once/a:finish#1/answer-lost"],
        {f"{_SCRIPTS}/finish.lua": [("lock.state, lock.holder = 'done',", "lock.state, lock.holder = 'cooldown',")]},
    ),
    "in SQL a lease is counted from the answer to the commit": Mutant(
        [
            "postgres/threads/free/a:commit#1/stopped",
            "mariadb/asyncio/free/a:commit#1/stopped",
            "sqlite/threads/free/a:commit#1/stopped",
        ],
        {
            "backends/sql/verbs.py": [
                (
                    "            answer = self._database.run(work)\n",
                    "            answer = self._database.run(work)\n"
                    "            answer = Granted(answer.fence, now()) if isinstance(answer, Granted) else answer\n",
                )
            ]
        },
    ),
    "in ZooKeeper the lease of one that waited is counted from the answer": Mutant(
        ["zookeeper/threads/handed/a:change#1/stopped"],
        {_QUEUE: [("seen._replace(since=asked)", "seen._replace(since=now())")]},
    ),
    "in ZooKeeper one whose wait was not answered takes the lock without writing it": Mutant(
        ["zookeeper/threads/handed/a:set#1/answer-lost"],
        {_QUEUE: [("place.state, data = UNKNOWN, place.says", "data = place.says")]},
    ),
    "in ZooKeeper a renewal is written over a longer extension": Mutant(
        ["zookeeper/threads/extend-renewed/a:change#2/cut-before", "zookeeper/asyncio/extend-renewed/a:change#2/slow"],
        {
            "backends/zookeeper/verbs.py": [
                (
                    "place.says(HELD, lease.expire), (lease.stat.version, lease.lock_version)",
                    "place.says(HELD, lease.expire), ()",
                )
            ]
        },
    ),
}


@contextmanager
def package_of(mutant: Mutant) -> Iterator[str]:
    """A folder that has a copy of our package, so changed."""
    source = Path(distlock_web.__file__).parent
    with tempfile.TemporaryDirectory(prefix="distlock-mutant-") as folder:
        copy = Path(folder, "distlock_web")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "locale"))
        for name, changes in mutant.changes.items():
            text = (copy / name).read_text("utf-8")
            for old, new in changes:
                if text.count(old) != 1:
                    raise ValueError(f"a mutant no longer fits: {text.count(old)} times {old!r}")
                text = text.replace(old, new)
            (copy / name).write_text(text, "utf-8")
        yield folder


def find(name: str, among: str = "", choice: int | None = None, jobs: int = 8) -> Iterator[tuple[str, Found | None]]:
    """By each combination that finds it, what came of it; ``among``: by others instead, whose names begin so."""
    mutant = MUTANTS[name]
    with package_of(mutant) as package:
        if among:
            tried = try_way(among.partition("/")[0], jobs=jobs, choice=choice, only=chosen(among), package=package)
            yield among, next(iter(tried.wrong), None)
            return
        for one in mutant.found_by:
            found = None
            for _ in range(3):
                found = try_one(Combination.read(one), package)
                if found.complaints:
                    break
            yield one, found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=list(MUTANTS))
    parser.add_argument("--among", default="")
    parser.add_argument("--choice", type=int)
    parser.add_argument("--jobs", type=int, default=8)
    options = parser.parse_args()
    missed = 0
    for name in [options.only] if options.only else MUTANTS:
        for one, found in find(name, options.among, options.choice, options.jobs):
            said = found.complaints[0] if found and found.complaints else "NOT FOUND"
            print(f"{name}\n  {found.combination if found else one}: {said}", flush=True)
            missed += said == "NOT FOUND"
    return missed


if __name__ == "__main__":
    sys.exit(main())
