"""Held locks to look through: in order and searched, over all stores.

If a store holds few locks, all are read; if many, the ``READ_AT_MOST`` that end first, and those whose name matches the
search. Then ``Browsed.partial`` is true, and order and totals are of the locks that were read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ..core.backend import LockInfo, WaiterInfo, retry_once
from ..core.errors import ConfigurationError, DistLockError
from ..core.registry import Registry, Store
from ..core.runtime import THREADS, drive
from .held_locks import LockRow, chosen_stores, inspect_store, rows_of
from .readable import printable

#: Locks of one store that are read for one look: a few hundredths of a second.
READ_AT_MOST = 2000
#: Of those, what a page shows: the search narrows it.
SHOWN = 100

#: Characters of one parameter of an address, which is repeated in each link of a page. Names and paths are shorter.
MAX_PARAMETER = 1000


@dataclass(frozen=True, slots=True)
class LockQuery:
    """Which locks, in which order. The names of the fields are those of the parameters in an address."""

    q: str = ""  #: words that are all in the lock's name or in what is known of its holder
    done: bool = False  #: what is done (``once``), in place of what is held

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> LockQuery:
        """The query that a URL's parameters mean. Values that no link of ours has are ignored: anybody can type."""
        return cls(printable(parameters.get("q", "").strip()[:MAX_PARAMETER]), parameters.get("done", "") == "1")

    def address(self) -> str:
        """As the query of a URL that asks for the same. What goes without saying is left out."""
        said = {"done": "1" if self.done else "", "q": self.q}
        return "?" + urlencode({name: value for name, value in said.items() if value})

    @classmethod
    def of_address(cls, query: str) -> LockQuery:
        """Back from what :meth:`address` gave. It comes from the client, so it may be anything."""
        try:
            return cls.of(dict(parse_qsl(query.lstrip("?"), max_num_fields=20)))
        except ValueError:
            return cls()

    @property
    def words(self) -> list[str]:
        return self.q.casefold().split()


def _place(row: LockRow) -> tuple[Any, ...]:
    """Those that most wait for first, then the oldest; by name at last, so that nothing jumps from look to look."""
    lock = row.lock
    return (-lock.waiters, lock.waiting_since or math.inf, lock.since or math.inf, row.alias, lock.name)


def _newest(row: LockRow) -> tuple[Any, ...]:
    return (-row.lock.since, row.alias, row.lock.name)


@dataclass(slots=True)
class Totals:
    """Of all locks that were read, whatever is searched for. Times in seconds."""

    held: int = 0  #: in the stores, read or not
    waiting: int = 0
    longest_hold: float = 0.0
    longest_wait: float = 0.0

    def add(self, lock: LockInfo, now: float) -> None:
        self.waiting += lock.waiters
        if lock.since:
            self.longest_hold = max(self.longest_hold, now - lock.since)
        if lock.waiting_since:
            self.longest_wait = max(self.longest_wait, now - lock.waiting_since)


@dataclass(slots=True)
class Browsed:
    """What one look at the stores has found."""

    query: LockQuery
    rows: list[LockRow] = field(default_factory=list)  #: all that match, in order
    totals: Totals = field(default_factory=Totals)
    read: int = 0
    errors: dict[str, DistLockError] = field(default_factory=dict)  #: by alias, why a store could not be listed
    stores: tuple[str, ...] = ()

    def known(self, total: str) -> str:
        """A total as it may be said: if a store failed, ``3`` is ``3+``, and of nothing is not known whether it is."""
        if not self.errors:
            return total
        return f"{total}+" if total[0] in "123456789" else "?"

    @property
    def partial(self) -> bool:
        """Whether a store holds more locks than were read."""
        return self.read < self.totals.held

    @property
    def shown(self) -> list[LockRow]:
        return self.rows[:SHOWN]


def browse(registry: Registry, query: LockQuery, alias: str | None = None) -> Browsed:
    """Look at all stores, or at one. Blocking. One that fails does not hide the others: it is among the ``errors``.

    ``ConfigurationError`` for an unknown alias.
    """
    browsed = Browsed(query, stores=tuple(registry.stores))
    look, order = (_done, _newest) if query.done else (_read, _place)
    found: list[LockRow] = []
    for store in chosen_stores(registry, alias):
        try:
            held, rows = drive(look(store, query.words))
        except DistLockError as error:
            browsed.errors[store.alias] = error
        else:
            browsed.totals.held += held
            found += rows
    browsed.read = len(found)
    now = time.time()
    for row in found:
        browsed.totals.add(row.lock, now)
    browsed.rows = sorted((row for row in found if row.matches(query.words)), key=order)
    return browsed


def keeps_records(store: Store) -> bool:
    """Whether the store can keep what is done; False, too, if it cannot be made."""
    try:
        return store.backend.capabilities.records
    except ConfigurationError:
        return False


async def _read(store: Store, words: list[str]) -> tuple[int, list[LockRow]]:
    """How many locks a store holds; and all of them, or the first and those that have all words in their name."""
    port = store.port(THREADS)
    listed = await retry_once(port.names, READ_AT_MOST)
    if listed is None:
        rows = await inspect_store(store, THREADS)
        return len(rows), rows
    held, names = listed
    if held > len(names) and words:
        everything = await retry_once(port.names, None)
        held, every_name = everything or listed  # for the type checker: it has just listed some
        meant = (name for name in every_name if _has(name, words))
        names = list(dict.fromkeys([*names, *islice(meant, READ_AT_MOST)]))
    rows = await inspect_store(store, THREADS, names)
    # What ended between the two questions is not held any more, and is not missing either.
    return (len(rows) if held <= len(names) else held), rows


async def _done(store: Store, words: list[str]) -> tuple[int, list[LockRow]]:
    """What was done lately: the ``READ_AT_MOST`` newest."""
    rows = rows_of(store, await retry_once(store.port(THREADS).done, READ_AT_MOST))
    return len(rows), rows


def _has(name: str, words: list[str]) -> bool:
    text = name.casefold()
    return all(word in text for word in words)


def waiters_of(registry: Registry, row: LockRow, limit: int) -> list[WaiterInfo] | None:
    """Who waits for this lock, the first in the queue in front; None: its store cannot tell. Blocking."""
    return drive(retry_once(registry.store(row.alias).port(THREADS).waiters, row.lock.name, limit))
