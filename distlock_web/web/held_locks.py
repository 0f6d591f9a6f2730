"""Who holds what, over all stores; which held lock is meant; and the release by force.

The admin page and both command lines are made of this: they only put the outcomes into pages, words and exit codes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.backend import LockInfo
from ..core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ..core.holder import HolderInfo
from ..core.registry import Registry, Store
from ..core.runtime import THREADS, drive
from .printable import printable

logger = logging.getLogger("distlock_web")


@dataclass(frozen=True, slots=True)
class LockRow:
    """One lock that is held. ``alias``, ``lock.name`` and ``lock.fence`` together name this one acquisition.

    What ``holder`` says is printable; ``lock.name`` is as the store has it.
    """

    alias: str
    lock: LockInfo
    holder: HolderInfo

    def matches(self, words: Iterable[str]) -> bool:
        """Whether all of these (casefolded) words are in the lock's name or in what is known of its holder."""
        holder = self.holder
        text = "\n".join((self.lock.name, holder.request_id, holder.path, holder.function, holder.host)).casefold()
        return all(word in text for word in words)

    def describe(self) -> str:
        """Store, fence and holder in one printable line, for logs."""
        holder = self.holder
        return (
            f"store {self.alias}, fence {self.lock.fence}, request {holder.request_id or '-'}, "
            f"held by {holder.path or holder.function or '-'} on {holder.host or '-'} pid {holder.pid}"
        )


@dataclass(slots=True)
class LockListing:
    """What is held, the oldest first, and by alias why a store could not be listed."""

    rows: list[LockRow] = field(default_factory=list)
    errors: dict[str, DistLockError] = field(default_factory=dict)


class ReleaseRefused(DistLockError):
    """Nothing was released by force. The class says why, the message says it in words."""


class LockNotHeld(ReleaseRefused):
    """No lock of this name is held."""


class OtherFence(ReleaseRefused):
    """A lock of this name is held, but by another holder than the one that is meant."""


class AmbiguousName(ReleaseRefused):
    """Several held locks have this name."""


class NoFence(ReleaseRefused):
    """The store gives no fences, so that this holder cannot be told from the next."""


class StoreUnreachable(BackendUnavailable):
    """What a store holds is not known. ``errors`` says why, by alias."""

    def __init__(self, errors: Mapping[str, DistLockError], consequence: str = "") -> None:
        super().__init__("\n".join(f"The store {alias!r} failed{consequence}: {errors[alias]}" for alias in errors))
        self.errors = errors


def held(registry: Registry, search: str = "") -> LockListing:
    """Every held lock that has all words of ``search`` in its name, request id, path, function or host.

    Blocking. A store that fails does not hide the others: it is among the ``errors``.
    """
    words = search.casefold().split()
    listing = _list(registry.stores.values())
    listing.rows = [row for row in listing.rows if row.matches(words)]
    return listing


def find(registry: Registry, name: str, store: str | None = None, fence: int | None = None) -> LockRow:
    """The one held lock that is meant by ``name``, given with or without the prefix of its store.

    ``store`` (an alias) and ``fence`` narrow it down; a whole name wins over one without its prefix. Blocking. Raises
    ``LockNotHeld``, ``OtherFence``, ``AmbiguousName`` or ``NoFence``; ``StoreUnreachable`` if any store that was
    asked did not answer, for it may have the lock that is meant; ``ConfigurationError`` for an unknown alias.
    """
    listing = _list(registry.stores.values() if store is None else [registry.store(store)])
    if listing.errors:
        raise StoreUnreachable(listing.errors)
    named = [row for row in listing.rows if row.lock.name in (name, registry.store(row.alias).config.prefix + name)]
    if not named:
        where = "" if store is None else f" in the store {store!r}"
        raise LockNotHeld(f"The lock {printable(name)!r} is not held{where}.", name=name)
    row = _only([row for row in named if fence in (None, row.lock.fence)], named, name, fence)
    if row.lock.fence is None:
        raise NoFence(f"The store {row.alias!r} gives no fences, so no holder can be told from the next.", name=name)
    return row


def _only(meant: list[LockRow], named: list[LockRow], name: str, fence: int | None) -> LockRow:
    """The one that is ``meant`` among those with this name."""
    if not meant:
        fences = " or ".join(str(row.lock.fence) for row in named)
        other = f"The lock {printable(name)!r} is not held with the fence {fence}, but with {fences}"
        raise OtherFence(f"{other}: nothing was released.", name=name)
    meant = [row for row in meant if row.lock.name == name] or meant
    if len(meant) > 1:
        found = ", ".join(f"{printable(row.lock.name)} in {row.alias}" for row in meant)
        raise AmbiguousName(f"Several locks are meant: {found}. Give the whole name and the store.", name=name)
    return meant[0]


def force_release(registry: Registry, row: LockRow, by: str) -> None:
    """Take this lock from exactly the holder that ``row`` shows, and log a warning that says who (``by``) did it.

    The holder is not stopped: it learns of the loss at its next round trip. Blocking. Raises ``OtherFence`` if the
    lock is no longer held by that holder; ``StoreUnreachable`` if the store did not say whether it was released.
    """
    shown = printable(row.lock.name)
    try:
        released = revoke(registry, row.alias, row.lock.name, row.lock.fence)
    except DistLockError as error:
        raise StoreUnreachable({row.alias: error}, "; the lock may be held still") from error
    if not released:
        raise OtherFence(f"The holder of {shown!r} changed meanwhile: nothing was released.", name=row.lock.name)
    logger.warning("Lock %s released by force by %s: %s", shown, printable(by), row.describe())


def revoke(registry: Registry, alias: str, name: str, fence: int | None) -> bool:
    """Take a lock from the holder with this fence, who learns of it at its next round trip.

    False: it is no longer held under this fence, or its store has no fences, and nothing was done. Blocking; raises
    ``DistLockError``.
    """
    return fence is not None and drive(registry.store(alias).port(THREADS).revoke(name, fence))


def _list(stores: Iterable[Store]) -> LockListing:
    listing = LockListing()
    for store in stores:
        try:
            locks = _inspect(store)
        except DistLockError as error:
            listing.errors[store.alias] = error
        else:
            listing.rows += [LockRow(store.alias, lock, _printable(HolderInfo.loads(lock.holder))) for lock in locks]
    listing.rows.sort(key=lambda row: (row.lock.since, row.alias, row.lock.name))
    return listing


def _inspect(store: Store) -> Sequence[LockInfo]:
    if not store.backend.capabilities.listing:
        raise ConfigurationError(f"The store {store.alias!r} cannot show who holds its locks.")
    return drive(store.port(THREADS).inspect())


def _printable(holder: HolderInfo) -> HolderInfo:
    return replace(
        holder,
        request_id=printable(holder.request_id),
        path=printable(holder.path),
        function=printable(holder.function),
        host=printable(holder.host),
    )
