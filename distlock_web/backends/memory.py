"""Locks in this process's memory: the reference implementation of the contract, and a double for tests.

It excludes threads and tasks of one process only. Every rule that the Lua scripts of the Redis backend follow stands
here in plain Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..core.backend import (
    SHARED,
    Backend,
    Busy,
    Capabilities,
    Claim,
    Ends,
    Granted,
    LockInfo,
    Loss,
    Port,
    WaiterInfo,
    at_once,
)
from ..core.config import StoreConfig
from ..core.errors import ConfigurationError
from ..core.location import without_credentials
from ..core.runtime import TASKS, THREADS, Parker, Runtime, Token, now

#: Seconds that each place in the queue adds to a waiter's sleep: an expiry wakes one, not all.
PLACE = 0.001
#: Seconds after which an unused name is forgotten, with what its last holders are told.
FORGET_AFTER = 60.0
#: Tokens of a lock whose ends are remembered.
REMEMBERED = 32


@dataclass(slots=True)
class _Owner:
    token: Token
    fence: int
    state: str  # held, cooldown, done, transit
    until: float
    holder: str = ""
    since: float = 0.0
    record: str | None = None  # of what is done


@dataclass(slots=True)
class _Waiter:
    claim: Claim
    parker: Parker
    since: float


@dataclass(slots=True)
class _Lock:
    owners: dict[str, _Owner] = field(default_factory=dict)  # by token: one, or several that share it
    queue: dict[str, _Waiter] = field(default_factory=dict)  # by token, in the order in which they came
    former: dict[str, str] = field(default_factory=dict)  # how these ended: "released", or by force "revoked"
    used: float = 0.0  # when it was last asked for

    def note(self, token: str, how: str) -> None:
        """So that a second copy of a request is told the truth, and a holder that is released by force hears so."""
        self.former[token] = how
        if len(self.former) > REMEMBERED:
            del self.former[next(iter(self.former))]

    @property
    def limit(self) -> int:
        """How many may have it, as far as its owners are concerned."""
        return min((owner.token.limit for owner in self.owners.values()), default=SHARED)

    @property
    def record(self) -> str | None:
        return next((owner.record for owner in self.owners.values()), None)

    def admits(self, token: Token) -> bool:
        """Whether this one may have it beside those that have it."""
        return len(self.owners) < at_once(self.limit, token.limit)

    def count_waiters(self) -> int:
        """Those that are alive: a waiter in a closed event loop would never wake."""
        return sum(waiter.parker.hears() for waiter in self.queue.values())

    def ends(self) -> Ends[float]:
        return Ends(sorted(owner.until for owner in self.owners.values()), self.limit)


class MemoryBackend(Backend):
    """``"BACKEND": "memory"``. One process only: for tests and for trying things out."""

    capabilities = Capabilities(
        queue=True,
        transfer=True,
        records=True,
        bounded_queue=True,
        sharing=True,
        min_expire=0.01,
    )

    settings: ClassVar[frozenset[str]] = frozenset({"LOCATION"})

    def __init__(self, config: StoreConfig) -> None:
        if config.location not in ("", "memory://"):
            setting, shown = config.setting("LOCATION"), without_credentials(config.location)
            raise ConfigurationError(f"{setting} is {shown!r}; locks in memory are nowhere else: leave it out.")
        self._table = _Table()
        self._sync_port = MemoryPort(self._table, THREADS)
        self._async_port = MemoryPort(self._table, TASKS)

    def sync_port(self) -> MemoryPort:
        return self._sync_port

    def async_port(self) -> MemoryPort:
        return self._async_port

    def renewal_port(self) -> MemoryPort:
        return self._sync_port

    def close(self) -> None:
        """Nothing to let go of: the locks live as long as the backend."""


class _Table:
    def __init__(self) -> None:
        # Reentrant: garbage that is collected inside may give back a lock of its own.
        self.mutex = threading.RLock()
        self.locks: dict[str, _Lock] = {}
        self.parkers: dict[str, Parker] = {}
        self.last_fence = 0
        self.forget_at = now() + FORGET_AFTER


class MemoryPort(Port):
    def __init__(self, table: _Table, runtime: Runtime) -> None:
        self.runtime = runtime
        self._table = table

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        since = now()
        with self._table.mutex:
            lock = self._lock(claim.name)
            if not self._hand_over(lock) and claim.token not in lock.owners and lock.admits(claim.token):
                self._own(lock, claim)
            owner = self._owner(lock, claim.token)
            if owner is None:
                return self._busy(lock, claim, wait, since)
            owner.until = max(owner.until, since + claim.expire)
            return Granted(owner.fence, since)

    def _busy(self, lock: _Lock, claim: Claim, wait: float | None, moment: float) -> Busy:
        owner = min(lock.owners.values(), key=lambda owner: owner.until)  # no caller is told that a free lock is busy
        remaining, held_for = max(0.001, lock.ends().free_at(claim.token) - moment), max(0.0, time.time() - owner.since)
        if wait == 0 or owner.record is not None:
            return Busy(remaining, remaining, holder=owner.holder, held_for=held_for, record=owner.record)
        waiter = lock.queue.get(claim.token)
        if waiter is None:
            if claim.max_waiters is not None and lock.count_waiters() >= claim.max_waiters:
                return Busy(remaining, remaining, holder=owner.holder, held_for=held_for, full=True)
            waiter = lock.queue[claim.token] = _Waiter(claim, self._parker(claim.token), time.time())
        # Asleep until the lease ends, but not for longer than one of its own: then nothing that happens to the holder,
        # or to those in front, costs more than that.
        ahead = list(lock.queue).index(claim.token)
        recheck_after = min(remaining, claim.expire) + ahead * PLACE
        return Busy(recheck_after, remaining, holder=owner.holder, held_for=held_for)

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        with self._table.mutex:
            lock = self._lock(claim.name)
            # Handed over, or done, before we came to sleep.
            if claim.token not in lock.queue or not lock.owners or lock.record is not None:
                return await self.acquire(claim, None)
            parker = self._parker(claim.token)
        sooner, begun = seconds is not None and seconds < busy.recheck_after, now()
        if not await parker.park(seconds if sooner else busy.recheck_after) and sooner:
            return busy._replace(remaining=max(0.001, busy.remaining - (now() - begun)))
        return await self.acquire(claim, None)

    async def cancel(self, claim: Claim) -> None:
        with self._table.mutex:
            lock = self._lock(claim.name)
            lock.queue.pop(claim.token, None)
            self._table.parkers.pop(claim.token, None)
            owner = lock.owners.get(claim.token)
            if owner is not None and owner.state in ("held", "transit"):
                self._let_go(lock, owner)
            elif owner is None:
                self._hand_over(lock)  # those behind it may fit beside the owners

    async def extend(self, claims: Sequence[Claim], timeout: float | None = None) -> list[Loss | None]:
        moment = now()
        with self._table.mutex:
            losses: list[Loss | None] = []
            for claim in claims:
                lock = self._lock(claim.name)
                owner = self._owner(lock, claim.token)
                if owner is not None:
                    owner.until = max(owner.until, moment + claim.expire)
                losses.append(None if owner is not None else self._loss(lock, claim.token))
            return losses

    async def release(self, claim: Claim, cooldown: float = 0.0, record: str | None = None) -> Loss | None:
        with self._table.mutex:
            lock = self._lock(claim.name)
            owner = self._owner(lock, claim.token)
            if owner is None:
                return None if lock.former.get(claim.token) == "released" else self._loss(lock, claim.token)
            lock.note(claim.token, "released")
            if cooldown > 0 and record is not None:
                owner.state, owner.record, owner.until = "done", record, now() + cooldown
                self._send_away(lock)
            elif cooldown > 0:
                owner.state = "cooldown"
                self._end_at(lock, owner, now() + cooldown)
            else:
                self._let_go(lock, owner)
            return None

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        with self._table.mutex:
            lock = self._lock(claim.name)
            if transit in lock.owners:
                return None
            owner = self._owner(lock, claim.token)
            if owner is None:
                return self._loss(lock, claim.token)
            lock.owners = {transit: owner}
            owner.token, owner.state = Token(transit), "transit"
            self._end_at(lock, owner, now() + seconds)
            return None

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        with self._table.mutex:
            lock = self._lock(claim.name)
            owner = self._owner(lock, claim.token)
            if owner is not None:  # a second copy; it may have been extended since
                owner.until = max(owner.until, since + claim.expire)
                return Granted(owner.fence, since)
            owner = lock.owners.get(transit)
            if owner is None or owner.state != "transit":
                return None
            lock.owners = {claim.token: owner}
            owner.token, owner.state, owner.holder = claim.token, "held", claim.holder
            self._end_at(lock, owner, since + claim.expire)
            return Granted(owner.fence, since)

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        moment = now()
        with self._table.mutex:
            known = self._table.locks
            wanted = list(known) if names is None else known.keys() & set(names)
            held = [
                LockInfo(
                    name, owner.fence, owner.holder, owner.since, owner.until - moment,
                    len(lock.queue) if number == 0 else 0, owner.state,
                    min((waiter.since for waiter in lock.queue.values()), default=None) if number == 0 else None,
                    len(lock.owners), lock.limit,
                )
                for name in wanted
                if (lock := self._current(known[name]))
                for number, owner in enumerate(lock.owners.values())
                if names is not None or owner.record is None
            ]  # fmt: skip
            return sorted(held, key=lambda line: line.remaining)

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        held = list(dict.fromkeys(lock.name for lock in await self.inspect()))
        return len(held), held[:limit]

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo]:
        with self._table.mutex:
            lock = self._table.locks.get(name)
            queue = [] if lock is None else list(self._current(lock).queue.values())[:limit]
            return [WaiterInfo(waiter.claim.holder, waiter.since) for waiter in queue]

    async def done(self, limit: int) -> list[LockInfo]:
        with self._table.mutex:
            found = [lock for lock in await self.inspect(tuple(self._table.locks)) if lock.state == "done"]
            return sorted(found, key=lambda lock: -lock.since)[:limit]

    async def revoke(self, name: str, fence: int) -> bool:
        return self._end(name, fence, done=False)

    async def forget(self, name: str, fence: int) -> bool:
        return self._end(name, fence, done=True)

    def _end(self, name: str, fence: int, *, done: bool) -> bool:
        with self._table.mutex:
            lock = self._lock(name)
            owner = next((owner for owner in lock.owners.values() if owner.fence == fence), None)
            if owner is None or (owner.record is not None) is not done:
                return False
            lock.note(owner.token, "revoked")
            self._let_go(lock, owner)
            return True

    # Under the mutex ---------------------------------------------------------------------------------------------

    def _lock(self, name: str) -> _Lock:
        """The lock of this name, as it is now."""
        locks, moment = self._table.locks, now()
        if moment > self._table.forget_at:
            self._forget_unused(moment)
        while True:
            lock = locks.setdefault(name, _Lock())
            lock.used = moment
            if locks.get(name) is lock:  # else garbage was collected in between, and what ran then has forgotten it
                return self._current(lock)

    def _current(self, lock: _Lock) -> _Lock:
        """The same, without a lease that has ended."""
        moment = now()
        for owner in list(lock.owners.values()):
            if owner.until <= moment:
                del lock.owners[owner.token]
        return lock

    def _forget_unused(self, moment: float) -> None:
        self._table.forget_at = moment + FORGET_AFTER
        for name, lock in list(self._table.locks.items()):
            current = self._current(lock)
            if lock.used < moment - FORGET_AFTER and not current.owners and not current.queue:
                self._table.locks.pop(name, None)

    def _parker(self, token: str) -> Parker:
        return self._table.parkers.setdefault(token, self.runtime.parker())

    def _owner(self, lock: _Lock, token: str) -> _Owner | None:
        """The owner, if it is this token's and holds the lock."""
        owner = lock.owners.get(token)
        return owner if owner is not None and owner.state == "held" else None

    def _hand_over(self, lock: _Lock) -> bool:
        """Give the lock to the first waiters that it admits, and wake them. Whether others still wait."""
        while lock.queue:
            waiter = next(iter(lock.queue.values()))
            if not lock.admits(waiter.claim.token) and waiter.parker.hears():
                return True
            del lock.queue[waiter.claim.token]
            if waiter.parker.unpark():  # else its event loop has closed: the lock would have no owner for a lease
                self._own(lock, waiter.claim)
            else:
                self._table.parkers.pop(waiter.claim.token, None)
        return False

    def _own(self, lock: _Lock, claim: Claim) -> _Owner:
        lock.queue.pop(claim.token, None)
        self._table.parkers.pop(claim.token, None)
        self._table.last_fence = fence = max(self._table.last_fence + 1, time.time_ns() // 1000)
        owner = _Owner(claim.token, fence, "held", now() + claim.expire, claim.holder, time.time())
        lock.owners[claim.token] = owner
        return owner

    def _let_go(self, lock: _Lock, owner: _Owner) -> None:
        known = lock.ends() if lock.queue else None
        del lock.owners[owner.token]
        self._hand_over(lock)
        self._tell_first(lock, known)

    def _send_away(self, lock: _Lock) -> None:
        """It is done: all who wait hear so when they ask."""
        waiting, lock.queue = list(lock.queue.values()), {}
        for waiter in waiting:
            self._table.parkers.pop(waiter.claim.token, None)
            waiter.parker.unpark()

    def _end_at(self, lock: _Lock, owner: _Owner, until: float) -> None:
        known = lock.ends() if lock.queue else None
        owner.until = until
        self._tell_first(lock, known)

    def _tell_first(self, lock: _Lock, known: Ends[float] | None) -> None:
        """Who waits may enter sooner than it knows: the first that hears of it asks."""
        if known is not None and lock.queue:
            ends = lock.ends()
            for waiter in list(lock.queue.values()):
                token = waiter.claim.token
                if ends.free_at(token) < known.free_at(token) and waiter.parker.unpark():
                    return

    def _loss(self, lock: _Lock, token: Token) -> Loss:
        if lock.former.get(token) == "revoked":
            return "revoked"
        return "expired" if token in lock.owners or lock.admits(token) else "taken"
