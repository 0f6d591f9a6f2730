"""Who holds what, over all stores: what the admin page and the command lines show, and the release by force.

Names, paths and request ids come from strangers. What is not printable (control characters, marks that turn the
writing direction) is replaced here; escaping for HTML is the page's business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from ..core.backend import LockInfo
from ..core.errors import ConfigurationError, DistLockError
from ..core.holder import HolderInfo
from ..core.registry import Registry, Store
from ..core.runtime import THREADS, drive


@dataclass(frozen=True, slots=True)
class LockRow:
    """One lock that is held. ``alias``, ``lock.name`` and ``lock.fence`` together name this one acquisition."""

    alias: str
    lock: LockInfo
    holder: HolderInfo

    def matches(self, words: Iterable[str]) -> bool:
        holder = self.holder
        text = "\n".join((self.lock.name, holder.request_id, holder.path, holder.what, holder.host)).casefold()
        return all(word in text for word in words)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Times are seconds, ``since`` since the epoch."""
        lock, holder = self.lock, self.holder
        return {
            "store": self.alias, "name": lock.name, "state": lock.state, "request_id": holder.request_id,
            "path": holder.path, "function": holder.what, "host": holder.host, "pid": holder.pid,
            "since": lock.since, "remaining": round(lock.remaining, 3), "fence": lock.fence, "waiters": lock.waiters,
        }  # fmt: skip


class Listing(NamedTuple):
    """What is held, the oldest first, and by alias what kept a store from being listed."""

    rows: list[LockRow]
    errors: dict[str, DistLockError]


def held(registry: Registry, search: str = "") -> Listing:
    """Every held lock that has all words of ``search`` in its name, request id, path, function or host.

    Blocking. A store that fails does not hide the others: it is among the ``errors``.
    """
    words = search.casefold().split()
    listing = Listing([], {})
    for alias, store in registry.stores.items():
        try:
            locks = _inspect(store)
        except DistLockError as error:
            listing.errors[alias] = error
            continue
        rows = (LockRow(alias, lock, _printable(HolderInfo.loads(lock.holder))) for lock in locks)
        listing.rows.extend(row for row in rows if row.matches(words))
    listing.rows.sort(key=lambda row: (row.lock.since, row.alias, row.lock.name))
    return listing


def named(registry: Registry, name: str) -> Listing:
    """The held locks of this name, given with or without the store's prefix."""
    everything = held(registry)
    rows = [row for row in everything.rows if row.lock.name in (name, registry.store(row.alias).config.prefix + name)]
    return Listing(rows, everything.errors)


def revoke(registry: Registry, alias: str, name: str, fence: int | None) -> bool:
    """Take a lock from the holder with this fence, who learns of it at its next round trip.

    False: it is no longer held under this fence, or its store has no fences, and nothing was done. Blocking; raises
    ``DistLockError``.
    """
    return fence is not None and drive(registry.store(alias).port(THREADS).revoke(name, fence))


def _inspect(store: Store) -> list[LockInfo]:
    if not store.backend.capabilities.listing:
        raise ConfigurationError(f"The store {store.alias!r} cannot show who holds its locks.")
    return drive(store.port(THREADS).inspect())


# For a terminal -----------------------------------------------------------------------------------------------------

_HEADINGS = ("LOCK", "STATE", "REQUEST ID", "HELD BY", "HOST:PID", "SINCE", "LEFT", "FENCE", "WAITERS")


def as_json(rows: Sequence[LockRow]) -> str:
    return json.dumps([row.as_dict() for row in rows], indent=2)


def as_table(rows: Sequence[LockRow]) -> Iterator[str]:
    """Aligned lines with headings; the store's alias in front where there are several."""
    several = len({row.alias for row in rows}) > 1
    table = [(*(("STORE",) if several else ()), *_HEADINGS)]
    table += [(*((row.alias,) if several else ()), *_cells(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cells(row: LockRow) -> tuple[str, ...]:
    lock, holder = row.lock, row.holder
    since = datetime.fromtimestamp(lock.since).astimezone().strftime("%Y-%m-%d %H:%M:%S") if lock.since else ""
    cells = (
        printable(lock.name), lock.state, holder.request_id, holder.path or holder.what,
        f"{holder.host}:{holder.pid}" if holder.host else "", since, f"{lock.remaining:.1f}s",
        "" if lock.fence is None else str(lock.fence), str(lock.waiters),
    )  # fmt: skip
    return tuple(cell or "-" for cell in cells)


def printable(text: str) -> str:
    """Without what could steer a terminal or reverse the reading direction of a page."""
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    )


def _printable(holder: HolderInfo) -> HolderInfo:
    fields = {name: printable(getattr(holder, name)) for name in ("request_id", "path", "what", "host")}
    return replace(holder, **fields)  # type: ignore[arg-type]
