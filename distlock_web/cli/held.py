"""``distlock list``, ``show`` and ``release``."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..core.backend import SHARED, WaiterInfo
from ..core.errors import DistLockError
from ..core.registry import registry
from ..core.request_id import HolderInfo
from ..ops.held_locks import (
    LockRow,
    StoreUnreachable,
    find_lock,
    force_release,
    list_all,
    listing_error,
    readable_holder,
)
from ..ops.lock_browser import waiters_of
from ..ops.readable import printable, span
from .exit_codes import NO, USAGE, CommandFailed
from .output import Output, aligned
from .parser import Context

#: What is looked for first stands in front: a narrow terminal cuts the rest.
_HEADINGS = ("LOCK", "STATE", "WAITERS", "LEFT", "AGE", "HELD BY", "HOST:PID", "FENCE", "REQUEST ID")
#: How many waiters ``show`` lists at most, each in a line of its own.
MAX_SHOWN_WAITERS = 100


def list_locks(options: Namespace, context: Context) -> int:
    listing = list_all(registry(), options.search)
    if options.json:
        context.out.line(json.dumps([fields(row) for row in listing.rows], indent=2))
    elif listing.rows:
        print_table(table_of(listing.rows), context.out)
    elif not listing.errors:
        context.out.line(none_held(options.search))
    if listing.errors:
        raise listing_error(listing.errors)
    return 0


def show_lock(options: Namespace, context: Context) -> int:
    row = find_lock(registry(), options.name, options.store, any_holder=True)
    waiters = _waiters(row)
    if options.json:
        queue = (
            None
            if waiters is None
            else [{"since": each.since, **_holder(readable_holder(each.holder))} for each in waiters]
        )
        context.out.line(json.dumps({**fields(row), "queue": queue}, indent=2))
        return 0
    for line in aligned([(f"{name}:", text) for name, text in _described(row)]):
        context.out.line(line)
    if waiters:
        context.out.line()
        table = [("WAITS", "REQUEST ID", "WHO", "HOST:PID"), *map(_waiter, waiters)]
        print_table(table, context.out)
        if len(waiters) < row.lock.waiters:
            context.out.line(f"and {row.lock.waiters - len(waiters)} more")
    return 0


def release_lock(options: Namespace, context: Context) -> int:
    stores = registry()
    row = find_lock(stores, options.name, options.store, options.fence)
    if row.done:
        text = f"{printable(row.lock.name)} is done, and not held. To have it run again: `distlock once forget`."
        raise CommandFailed(text, NO)
    if not options.yes:
        if not interactive():
            raise CommandFailed("Nothing was released: there is no terminal to ask at. Use --yes.", USAGE)
        print_table(table_of([row]), context.out)
        if not confirmed("Take the lock from this holder?"):
            raise CommandFailed("Not confirmed: nothing was released.", NO)
    force_release(stores, row, user())
    context.out.line(f"Released {printable(row.lock.name)} (fence {row.lock.fence}).")
    return 0


def interactive() -> bool:
    """Whether there is a person to ask: not in a cron job or a pipe."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirmed(question: str) -> bool:
    """Ask; everything but a yes is a no."""
    try:
        return input(f"{question} [y/N]: ").strip().casefold() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


def none_held(search: str) -> str:
    return f"No lock that is held matches {search!r}." if search else "No lock is held."


def table_of(rows: Sequence[LockRow]) -> list[tuple[str, ...]]:
    """Cells under headings; the store's alias in front where there are several."""
    several = len({row.alias for row in rows}) > 1
    table: list[tuple[str, ...]] = [_HEADINGS, *map(_cells, rows)]
    stores = ("STORE", *(row.alias for row in rows))
    return [(store, *cells) for store, cells in zip(stores, table, strict=True)] if several else table


def fields(row: LockRow) -> dict[str, Any]:
    """What ``--json`` shows of a lock. Times are seconds, ``since`` since the epoch."""
    lock = row.lock
    return {
        "store": row.alias, "name": lock.name, "state": lock.state, **_holder(row.holder),
        "since": lock.since, "remaining": round(lock.remaining, 3), "renews": row.holder.renews,
        "fence": lock.fence, "waiters": lock.waiters,
        "holders": lock.holders, "limit": None if lock.limit == SHARED else lock.limit,
    }  # fmt: skip


def print_table(table: Sequence[Sequence[str]], out: Output) -> None:
    headings, *lines = aligned(table)
    out.line(out.paint(headings, "bold"))
    for line in lines:
        out.line(line)


def _holder(holder: HolderInfo) -> dict[str, Any]:
    names = ("request_id", "request", "path", "function", "user", "host", "pid", "command", "worker")
    return {name: getattr(holder, name) for name in names}


def _cells(row: LockRow) -> tuple[str, ...]:
    lock, holder = row.lock, row.holder
    cells = (
        printable(lock.name), _state(row), str(lock.waiters), f"{lock.remaining:.1f}s",
        span(time.time() - lock.since) if lock.since else "", holder.path or holder.function, process_of(holder),
        "" if lock.fence is None else str(lock.fence), holder.request_id,
    )  # fmt: skip
    return tuple(cell or "-" for cell in cells)


def _state(row: LockRow) -> str:
    return ", ".join(filter(None, (row.lock.state, row.sharing)))


def _described(row: LockRow) -> list[tuple[str, str]]:
    lock, holder = row.lock, row.holder
    taken = datetime.fromtimestamp(lock.since).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    since = f"{taken} ({span(time.time() - lock.since)} ago)" if lock.since else "-"
    return [
        ("lock", printable(lock.name)),
        ("store", row.alias),
        ("state", _state(row)),
        ("held by", " ".join(filter(None, (holder.path, holder.function))) or "-"),
        ("user", holder.user or "-"),
        ("host:pid", process_of(holder) or "-"),
        ("program", " ".join(filter(None, (holder.command, holder.worker))) or "-"),
        ("request id", holder.request_id or "-"),
        ("since", since),
        ("left", _left(row)),
        ("fence", "-" if lock.fence is None else str(lock.fence)),
        ("waiters", str(lock.waiters)),
    ]


def _left(row: LockRow) -> str:
    holder = row.holder
    whole = f" of {holder.expire:g}s" if holder.expire else ""
    return f"{row.lock.remaining:.1f}s{whole}" + (", renewed by its holder" if holder.renews else "")


def _waiters(row: LockRow) -> list[WaiterInfo] | None:
    """Who waits, the first in the queue in front; None where the store cannot tell."""
    try:
        return waiters_of(registry(), row, MAX_SHOWN_WAITERS)
    except DistLockError as error:
        raise StoreUnreachable({row.alias: error}) from error


def _waiter(waiter: WaiterInfo) -> tuple[str, ...]:
    who = readable_holder(waiter.holder)
    cells = (who.request_id, who.path or who.function, process_of(who))
    return (span(time.time() - waiter.since), *(cell or "-" for cell in cells))


def process_of(holder: HolderInfo) -> str:
    return f"{holder.host}:{holder.pid}" if holder.host else ""


def user() -> str:
    """Who released a lock, for the log."""
    try:
        name = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user that has no name
        name = f"uid {os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{name} (command line)"
