"""Who holds what, over all stores; which held lock is meant; and the release by force.

The admin page and both command lines are made of this: they only put the outcomes into pages, words and exit codes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.backend import SHARED, LockInfo, retry_once
from ..core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ..core.registry import Registry, Store
from ..core.registry import registry as stores_in_force
from ..core.request_id import HolderInfo
from ..core.runtime import TASKS, THREADS, Runtime, blocking_runtime, drive
from ..locks import events
from .readable import printable

logger = logging.getLogger("distlock_web")


@dataclass(frozen=True, slots=True)
class LockRow:
    """One held lock. ``alias``, ``lock.name`` and ``lock.fence`` together identify this acquisition.

    The texts of ``holder`` are printable. ``lock.name`` is as in the store.
    """

    alias: str
    lock: LockInfo
    holder: HolderInfo

    @property
    def sharing(self) -> str:
        """Of a lock that several may hold, how many do: ``2 of 3``, or ``5 readers``; else nothing."""
        holders, limit = self.lock.holders, self.lock.limit
        if limit == SHARED:
            return f"{holders} reader{'' if holders == 1 else 's'}"
        return f"{holders} of {limit}" if limit > 1 else ""

    def matches(self, words: Iterable[str]) -> bool:
        """Whether all of these (casefolded) words are in the lock's name or in what is known of its holder."""
        text = "\n".join([self.lock.name, *_texts(self.holder).values()]).casefold()
        return all(word in text for word in words)

    @property
    def done(self) -> bool:
        """It is not held: it is what ``once`` has left."""
        return self.lock.state == "done"

    @property
    def freed(self) -> str:
        """In words, what a release by force makes of it."""
        return "forgotten" if self.done else "released by force"

    def describe(self) -> str:
        """Store, fence and holder in one printable line, for logs."""
        holder = self.holder
        return (
            f"store {self.alias}, fence {self.lock.fence}, request {holder.request_id or '-'}, "
            f"held by {holder.path or holder.function or '-'} on {holder.host or '-'} pid {holder.pid}"
        )

    def log_fields(self, **known: object) -> dict[str, object]:
        """For the line of a log (``extra=``) that says that it was released by force."""
        known |= {"request_id": self.holder.request_id, "function": self.holder.function, "fence": self.lock.fence}
        return events.log_fields("revoked", self.alias, self.lock.name, self.holder.function, **known)


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


def listing_error(errors: Mapping[str, DistLockError]) -> DistLockError:
    """Why not all stores could be listed: ``StoreUnreachable`` if one did not answer, else ``ConfigurationError``."""
    failure = StoreUnreachable(errors)
    if all(isinstance(error, ConfigurationError) for error in errors.values()):
        return ConfigurationError(str(failure))
    return failure


def held_locks(search: str = "", *, store: str | None = None) -> list[LockRow]:
    """The locks that are held now, the oldest first. It is a snapshot, which may already be out of date.

    ``search``: only locks with all of these words in their name or in their holder's data: request id,
    request, path, function, host and so on. ``store``: an alias; without it all stores are asked. A row's ``lock`` has
    ``name``, ``fence``, ``since``, ``remaining``, ``waiters``, ``waiting_since`` and ``state``; its ``holder`` has
    ``function``, ``path``, ``host``, ``pid``, ``command``, ``worker``, ``user``, ``request_id`` and ``request``, which
    all locks of one request share. A state is ``held``, ``cooldown`` or ``transit``.

    Raises ``BackendUnavailable`` if a store does not answer.
    """
    return drive(_held_locks(search, store, blocking_runtime("`await aheld_locks(...)`")))


async def aheld_locks(search: str = "", *, store: str | None = None) -> list[LockRow]:
    """The asyncio twin of :func:`held_locks`."""
    return await _held_locks(search, store, TASKS)


async def _held_locks(search: str, store: str | None, runtime: Runtime) -> list[LockRow]:
    listing = _matching(await _list(chosen_stores(stores_in_force(), store), runtime), search)
    if listing.errors:
        raise next(iter(listing.errors.values()))
    return listing.rows


def list_all(registry: Registry, search: str = "") -> LockListing:
    """Every held lock that has all words of ``search`` in its name or in what is known of its holder.

    Blocking. A store that fails does not hide the others: it is among the ``errors``.
    """
    return _matching(drive(_list(registry.stores.values(), THREADS)), search)


def find_lock(
    registry: Registry, name: str, store: str | None = None, fence: int | None = None, *, any_holder: bool = False
) -> LockRow:
    """The one held lock that is meant by ``name``, given with or without the prefix of its store.

    ``store`` (an alias) and ``fence`` narrow it down; a whole name wins over one without its prefix. ``any_holder``: of
    a lock that several hold, the oldest one's line will do. Blocking. Raises
    ``LockNotHeld``, ``OtherFence``, ``AmbiguousName`` or ``NoFence``; ``StoreUnreachable`` if any store that was
    asked did not answer, for it may have the lock that is meant; ``ConfigurationError`` for an unknown alias.
    """
    listing = drive(_list(chosen_stores(registry, store), THREADS, name))
    if listing.errors:
        raise listing_error(listing.errors)
    named = listing.rows
    if not named:
        where = "" if store is None else f" in the store {store!r}"
        raise LockNotHeld(f"The lock {printable(name)!r} is not held{where}.", name=name)
    row = _only([row for row in named if fence in (None, row.lock.fence)], named, name, fence, any_holder)
    if row.lock.fence is None:
        raise NoFence(f"The store {row.alias!r} gives no fences, so no holder can be told from the next.", name=name)
    return row


def _only(meant: list[LockRow], named: list[LockRow], name: str, fence: int | None, any_holder: bool) -> LockRow:
    """The one that is ``meant`` among those with this name."""
    if not meant:
        fences = " or ".join(str(row.lock.fence) for row in named)
        other = f"The lock {printable(name)!r} is not held with the fence {fence}, but with {fences}"
        raise OtherFence(f"{other}: nothing was released.", name=name)
    meant = [row for row in meant if row.lock.name == name] or meant
    if len({(row.alias, row.lock.name) for row in meant}) == 1 < len(meant) and not any_holder:
        fences = ", ".join(str(row.lock.fence) for row in meant)
        raise AmbiguousName(
            f"{printable(meant[0].lock.name)} has several holders: give the fence of one, {fences}.", name=name
        )
    if len({(row.alias, row.lock.name) for row in meant}) > 1:
        found = ", ".join(f"{printable(row.lock.name)} in {row.alias}" for row in meant)
        raise AmbiguousName(f"Several locks are meant: {found}. Give the whole name and the store.", name=name)
    return meant[0]


def force_release(registry: Registry, row: LockRow, by: str) -> None:
    """Take this lock from exactly the holder of ``row``, and log a warning with ``by``, the name of the operator.

    What is done (``once``) is forgotten by that: the next call runs again. Another holder is not stopped: it learns of
    the loss at its next round trip. Logged is also what is perhaps done, because the store did not say. Blocking.
    Raises ``OtherFence`` if the lock is no longer held by that holder, or has no fence to know it by;
    ``StoreUnreachable`` if the store did not say whether it was released.
    """
    shown, by = printable(row.lock.name), printable(by)  # anybody's words: they go into logs and to listeners
    try:
        released = drive(_revoke(registry.store(row.alias).port(THREADS), row))
    except ConfigurationError:
        raise
    except DistLockError as error:
        text = f"Lock %s perhaps {row.freed} by %s: %s"  # if it was, nothing else says who did it
        logger.warning(text, shown, by, row.describe(), extra=row.log_fields(reason=by))
        raise StoreUnreachable({row.alias: error}, "; the lock may be held still") from error
    if not released:
        raise OtherFence(f"The holder of {shown!r} changed meanwhile: nothing was released.", name=row.lock.name)
    logger.warning(f"Lock %s {row.freed} by %s: %s", shown, by, row.describe(), extra=row.log_fields(reason=by))
    template = row.holder.function  # the store knows no other
    events.publish("revoked", row.alias, row.lock.name, template, other=row.holder, fence=row.lock.fence, reason=by)


async def _revoke(port: Any, row: LockRow) -> bool:
    """False: the lock is not held under this fence, and nothing was done."""
    name, fence = row.lock.name, row.lock.fence
    if fence is None:
        return False
    verb = port.forget if row.done else port.revoke
    try:
        return bool(await verb(name, fence))
    except BackendUnavailable:
        # If the first was done and only its answer lost, the second is told that this holder is gone. Either way it is.
        await verb(name, fence)
        return True


def chosen_stores(registry: Registry, alias: str | None) -> Iterable[Store]:
    """The store with this alias, or all. ``ConfigurationError`` for an unknown one."""
    return registry.stores.values() if alias is None else [registry.store(alias)]


def _matching(listing: LockListing, search: str) -> LockListing:
    words = search.casefold().split()
    listing.rows = [row for row in listing.rows if row.matches(words)]
    return listing


async def _list(stores: Iterable[Store], runtime: Runtime, name: str | None = None) -> LockListing:
    """All that these stores hold; or what is meant by ``name``, with or without the prefix of its store."""
    listing = LockListing()
    for store in stores:
        names = None if name is None else {name, store.config.prefix + name}
        try:
            listing.rows += await inspect_store(store, runtime, names)
        except DistLockError as error:
            listing.errors[store.alias] = error
    listing.rows.sort(key=lambda row: (row.lock.since, row.alias, row.lock.name))
    return listing


async def inspect_store(store: Store, runtime: Runtime, names: Iterable[str] | None = None) -> list[LockRow]:
    """What this store holds now: of these names, or all."""
    port = store.port(runtime)
    chosen = None if names is None else list(names)
    return rows_of(store, await retry_once(port.inspect, chosen))


def rows_of(store: Store, locks: Iterable[LockInfo]) -> list[LockRow]:
    return [LockRow(store.alias, lock, readable_holder(lock.holder)) for lock in locks]


def readable_holder(text: str) -> HolderInfo:
    """A holder or waiter, read from a store's text and made printable."""
    holder = HolderInfo.loads(text)
    shown: dict[str, Any] = {name: printable(value) for name, value in _texts(holder).items()}
    return replace(holder, **shown)


def _texts(holder: HolderInfo) -> dict[str, str]:
    values = {name: getattr(holder, name) for name in holder.__dataclass_fields__}
    return {name: value for name, value in values.items() if isinstance(value, str)}
