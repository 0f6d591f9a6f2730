"""``distlock watch``: the locks that are held, looked at again and again."""

from __future__ import annotations

import itertools
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..core.registry import registry
from ..web.held_locks import LockRow, StoreUnreachable
from ..web.lock_browser import Browsed, LockQuery, browse
from ..web.lock_presenter import span
from ..web.printable import printable
from .held import none_held
from .output import aligned
from .parser import Context
from .screen import draw, full_screen, read_key


class Line(NamedTuple):
    text: str
    styles: Sequence[str] = ()


def watch(options: Namespace, context: Context) -> int:
    looks = itertools.count(1) if options.count is None else range(1, options.count + 1)
    if not context.out.terminal:
        return _print(options, context, looks)
    try:
        with full_screen(context.out):
            for look in looks:
                frame = _frame(options)
                draw(context.out, [line.text for line in frame], [line.styles for line in frame])
                if look == options.count or read_key(options.interval) in ("q", "Q"):
                    break
    except KeyboardInterrupt:
        pass
    return 0


def _print(options: Namespace, context: Context, looks: Iterator[int] | range) -> int:
    """For a file or a pipe: each look below the one before."""
    for look in looks:
        for line in _frame(options):
            context.out.line(line.text)
        context.out.line()
        context.out.stream.flush()
        if look != options.count:
            time.sleep(options.interval)
    return 0


def _frame(options: Namespace) -> list[Line]:
    """What is held at this moment: the totals, what failed, a line for each lock, those first that most wait for."""
    browsed = browse(registry(), LockQuery(q=options.search))
    frame = [Line(_totals(browsed, options), ("bold",)), *_errors(browsed), Line("")]
    if browsed.rows:
        headings, *lines = _table(browsed.rows)
        frame.append(Line(headings, ("cyan",)))
        frame += [Line(line, _style(row)) for line, row in zip(lines, browsed.rows, strict=True)]
    elif not browsed.errors:
        frame.append(Line(none_held(options.search)))
    return frame


def _table(rows: Sequence[LockRow]) -> list[str]:
    """What is short and changes is in front: a narrow terminal cuts the rest."""
    table = [("WAITERS", "AGE", "LEFT", "STATE", "LOCK", "HELD BY", "HOST:PID", "STORE", "FENCE")]
    for row in rows:
        lock, holder = row.lock, row.holder
        age = span(time.time() - lock.since) if lock.since else "-"
        who = holder.path or holder.function or "-"
        at = f"{holder.host}:{holder.pid}" if holder.host else "-"
        fence = "-" if lock.fence is None else str(lock.fence)
        left, name = span(lock.remaining), printable(lock.name)
        table.append((str(lock.waiters or "-"), age, left, lock.state, name, who, at, row.alias, fence))
    return aligned(table)


def _totals(browsed: Browsed, options: Namespace) -> str:
    totals = browsed.totals
    parts = [f"held {browsed.known(str(totals.held))}", f"waiting {browsed.known(str(totals.waiting))}"]
    if totals.longest_hold:
        parts.append(f"longest {span(totals.longest_hold)}")
    if totals.longest_wait:
        parts.append(f"longest wait {span(totals.longest_wait)}")
    if browsed.partial:
        parts.append(f"of {browsed.read} that end first")
    return f"{'  '.join(parts)}   {time.strftime('%H:%M:%S')}  every {options.interval:g} s  q leaves"


def _errors(browsed: Browsed) -> list[Line]:
    if not browsed.errors:
        return []
    return [Line(line, ("red",)) for line in str(StoreUnreachable(browsed.errors)).splitlines()]


def _style(row: LockRow) -> tuple[str, ...]:
    if row.lock.waiters:
        return ("yellow",)
    return () if row.lock.state == "held" else ("dim",)
