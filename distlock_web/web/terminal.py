"""Held locks on a terminal: as an aligned table for people, as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .held_locks import LockRow
from .printable import printable

_HEADINGS = ("LOCK", "STATE", "REQUEST ID", "HELD BY", "HOST:PID", "SINCE", "LEFT", "FENCE", "WAITERS")


def as_json(rows: Sequence[LockRow]) -> str:
    """An array with an object for each lock. Times are seconds, ``since`` since the epoch."""
    return json.dumps([_fields(row) for row in rows], indent=2)


def as_table(rows: Sequence[LockRow]) -> str:
    """Aligned lines with headings; the store's alias in front where there are several."""
    several = len({row.alias for row in rows}) > 1
    table: list[tuple[str, ...]] = [_HEADINGS, *map(_cells, rows)]
    if several:
        stores = ("STORE", *(row.alias for row in rows))
        table = [(store, *cells) for store, cells in zip(stores, table, strict=True)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join(lines)


def _fields(row: LockRow) -> dict[str, Any]:
    lock, holder = row.lock, row.holder
    return {
        "store": row.alias, "name": lock.name, "state": lock.state, "request_id": holder.request_id,
        "request": holder.request,
        "path": holder.path, "function": holder.function, "host": holder.host, "pid": holder.pid,
        "since": lock.since, "remaining": round(lock.remaining, 3), "fence": lock.fence, "waiters": lock.waiters,
    }  # fmt: skip


def _cells(row: LockRow) -> tuple[str, ...]:
    lock, holder = row.lock, row.holder
    since = datetime.fromtimestamp(lock.since).astimezone().strftime("%Y-%m-%d %H:%M:%S") if lock.since else ""
    cells = (
        printable(lock.name), lock.state, holder.request_id, holder.path or holder.function,
        f"{holder.host}:{holder.pid}" if holder.host else "", since, f"{lock.remaining:.1f}s",
        "" if lock.fence is None else str(lock.fence), str(lock.waiters),
    )  # fmt: skip
    return tuple(cell or "-" for cell in cells)
