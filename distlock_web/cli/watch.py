"""``distlock watch``: the locks that are held, looked at again and again."""

from __future__ import annotations

import itertools
import os
import time
from argparse import Namespace
from collections.abc import Sequence

from ..core.registry import registry
from ..web.held_locks import StoreUnreachable
from ..web.lock_browser import LockQuery, browse
from .held import none_held, table_of
from .output import Output, aligned, fitted
from .parser import Context


def watch(options: Namespace, context: Context) -> int:
    show = _redraw if context.out.terminal else _print
    looks = itertools.count(1) if options.count is None else range(1, options.count + 1)
    try:
        for look in looks:
            show(context.out, _frame(options))
            context.out.stream.flush()
            if look != options.count:
                time.sleep(options.interval)
    except KeyboardInterrupt:
        context.out.line()
    return 0


def _frame(options: Namespace) -> list[tuple[str, ...]]:
    """Lines, each with its styles: the totals, what failed, the locks, those first that most wait for."""
    browsed = browse(registry(), LockQuery(q=options.search))
    held, waiting = (browsed.known(str(total)) for total in (browsed.totals.held, browsed.totals.waiting))
    of = f"  of {browsed.read} that end first" if browsed.partial else ""
    every = f"{time.strftime('%H:%M:%S')}  every {options.interval:g} s  Ctrl-C leaves"
    frame: list[tuple[str, ...]] = [(f"held {held}  waiting {waiting}{of}   {every}", "bold")]
    if browsed.errors:
        frame += [(line, "red") for line in str(StoreUnreachable(browsed.errors)).splitlines()]
    frame.append(("",))
    if browsed.rows:
        headings, *lines = aligned(table_of(browsed.rows))
        frame.append((headings, "cyan"))
        frame += [
            (line, "yellow") if row.lock.waiters else (line,) for line, row in zip(lines, browsed.rows, strict=True)
        ]
    elif not browsed.errors:
        frame.append((none_held(options.search),))
    return frame


def _print(out: Output, frame: Sequence[Sequence[str]]) -> None:
    """For a file or a pipe: each look below the one before."""
    for text, *_ in frame:
        out.line(text)
    out.line()


def _redraw(out: Output, frame: Sequence[Sequence[str]]) -> None:
    """In place. A line is cut, and lines that do not fit are counted."""
    width, height = os.get_terminal_size(out.stream.fileno())
    height = height or 24  # a serial line does not know its size
    shown = [out.paint(fitted(text, width or 80), *styles) for text, *styles in frame]
    if len(shown) > height:
        shown[height - 1 :] = [out.paint(f"{len(shown) - height + 1} more", "dim")]
    out.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in shown) + "\x1b[J")
