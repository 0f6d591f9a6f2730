"""``distlock once``: what is done, and what is to run again."""

from __future__ import annotations

import json
import time
from argparse import Namespace

from ..core.registry import registry
from ..ops.held_locks import LockNotHeld, LockRow, find_lock, force_release, listing_error
from ..ops.lock_browser import LockQuery, browse
from ..ops.readable import printable, span
from .exit_codes import NO, USAGE, CommandFailed
from .held import fields, print_table, user
from .parser import Context


def once(options: Namespace, context: Context) -> int:
    if (options.action == "forget") != (options.name is not None) or (options.action == "forget" and options.search):
        raise CommandFailed("once: use `once list` or `once forget KEY`.", USAGE)
    return _forget(options, context) if options.action == "forget" else _list(options, context)


def _list(options: Namespace, context: Context) -> int:
    browsed = browse(registry(), LockQuery(done=True, q=options.search), options.store)
    if options.json:
        context.out.line(json.dumps([fields(row) for row in browsed.rows], indent=2))
    elif browsed.rows:
        print_table([("DONE", "AGO", "KEPT", "BY"), *map(_cells, browsed.rows)], context.out)
    elif not browsed.errors:
        context.out.line(f"Nothing that is done matches {options.search!r}." if options.search else "Nothing is done.")
    if browsed.errors:
        raise listing_error(browsed.errors)
    return 0


def _cells(row: LockRow) -> tuple[str, ...]:
    lock, holder = row.lock, row.holder
    who = holder.path or holder.function or "-"
    return printable(lock.name), span(time.time() - lock.since), span(lock.remaining), who


def _forget(options: Namespace, context: Context) -> int:
    stores = registry()
    try:
        row = find_lock(stores, f"once:{options.name}", options.store)
    except LockNotHeld:
        try:
            row = find_lock(stores, options.name, options.store)  # as `list` shows it
        except LockNotHeld:
            raise CommandFailed(f"{printable(options.name)} is not done: there is nothing to forget.", NO) from None
    if row.lock.state != "done":
        raise CommandFailed(f"{printable(row.lock.name)} is not done: it is still running, or it is a lock.", NO)
    force_release(stores, row, user())
    forgotten = f"Forgotten: {printable(row.lock.name)}. It may run again."
    context.out.line(json.dumps(fields(row), indent=2) if options.json else forgotten)
    return 0
