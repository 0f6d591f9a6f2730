"""``make faults``: see ``tests/support/faults/steps.py`` for what is tried."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

from distlock_web.testing.servers import ServerMissing
from tests.support.requirements import required

from .steps import Combination
from .table import JOBS, Found, Part, Tried, try_one, try_way
from .ways import WAYS


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults", description="One fault at every step of every scenario.")
    parser.add_argument("--only", default="", help="a name, or how names begin: redis/threads/handed, redis/*/free")
    parser.add_argument("--choice", type=int, help="so many of each store")
    parser.add_argument("--part", type=Part.read, default=Part(1, 1), help="2/4: the second of four, which are all")
    parser.add_argument("--seed", type=int, default=0, help="which ones these are")
    parser.add_argument("--jobs", type=int, default=JOBS, help="so many side by side")
    options = parser.parse_args()
    only = options.only
    if only.count("/") == 4:
        found = try_one(Combination.read(only))
        print(
            "\n".join(
                [f"{only}: {'wrong' if found.complaints else 'right'}, after {found.took:.1f} s", *found.complaints]
            )
        )
        return bool(found.complaints)
    tried, missing = Tried(), False
    for name in WAYS:
        if only.partition("/")[0] not in ("", "*", name):
            continue
        try:
            of = try_way(
                name,
                jobs=options.jobs,
                choice=options.choice,
                seed=options.seed,
                part=options.part,
                only=chosen(only),
                tell=bar,
            )
        except ServerMissing as error:
            missing |= required(name)
            print(f"{name}: NOT TRIED, {error}", flush=True)
            continue
        tried.found += of.found
        tried.seconds += of.seconds
        print(f"\r{name}: {len(of.found)} runs, {of.seconds:.0f} s, {len(of.wrong)} wrong{' ' * 40}", flush=True)
    if not tried.found and not missing:
        parser.error(f"nothing is called {only}: make faults ONLY=redis/threads/free")
    print(tried.table())
    again = Counter(why.rstrip("0123456789. s") for found in tried.found for why in found.again)
    for why, often in again.most_common(10):
        print(f"run again: {often} times, {why}")
    for found in tried.wrong:
        print("\n  ".join([f"WRONG: make faults ONLY={found.combination}", *found.complaints]))
    print(f"{len(tried.found)} runs in {tried.seconds:.0f} s; {len(tried.wrong)} wrong")
    return bool(tried.wrong) or missing


def chosen(only: str) -> Callable[[Combination], bool]:
    """Those whose name begins so; ``*`` stands for any of its words."""
    wanted = only.split("/") if only else []

    def is_chosen(combination: Combination) -> bool:
        words = str(combination).split("/")
        return all(one in ("*", other) for one, other in zip(wanted, words, strict=False))

    return is_chosen


def bar(done: int, of: int, found: Found) -> None:
    if found.complaints:
        print(f"\rWRONG: {found.combination}: {found.complaints[0]}{' ' * 20}", flush=True)
    if sys.stdout.isatty() or done % 50 == 0 or done == of:
        filled = round(30 * done / of)
        print(
            f"\r[{'#' * filled}{' ' * (30 - filled)}] {done}/{of} {str(found.combination)[:60]:60}", end="", flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
