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

from ..core.backend import Busy, Capabilities, Claim, Granted, LockInfo, Loss
from ..core.config import StoreConfig
from ..core.runtime import TASKS, THREADS, Parker, Runtime, now

#: Seconds that the head of the queue has to notice an expiry, before the next one looks.
TURN = 1.0


@dataclass(slots=True)
class _Owner:
    token: str
    fence: int
    state: str  # held, cooldown, transit
    until: float
    holder: str = ""
    since: float = 0.0


@dataclass(slots=True)
class _Waiter:
    claim: Claim
    place: int
    until: float
    parker: Parker


@dataclass(slots=True)
class _Lock:
    owner: _Owner | None = None
    queue: dict[str, _Waiter] = field(default_factory=dict)
    last_fence: int = 0
    released: str = ""
    revoked: str = ""


class MemoryBackend:
    """``"BACKEND": "memory"``. One process only: for tests and for trying things out."""

    capabilities = Capabilities(fencing=True, queue=True, listing=True, min_expire=0.01)

    settings: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: StoreConfig) -> None:
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

    def after_fork(self) -> None:
        # The child's memory is its own: it starts without locks, for it could exclude nobody anyway.
        self._table.__init__()  # type: ignore[misc]


class _Table:
    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.locks: dict[str, _Lock] = {}
        self.parkers: dict[str, Parker] = {}


class MemoryPort:
    def __init__(self, table: _Table, runtime: Runtime) -> None:
        self.runtime = runtime
        self._table = table

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        since = now()
        with self._table.mutex:
            lock = self._lock(claim.name)
            owner = lock.owner
            if owner is not None and owner.token == claim.token:
                owner.until = max(owner.until, since + claim.expire)
                return Granted(owner.fence, since)
            if owner is None and self._hand_over(lock, claim):
                return Granted(lock.last_fence, since)
            return self._busy(lock, claim, wait, since)

    def _busy(self, lock: _Lock, claim: Claim, wait: float | None, moment: float) -> Busy:
        owner = lock.owner
        remaining = max(0.001, owner.until - moment) if owner else TURN
        if wait == 0:
            return Busy(remaining, remaining)
        waiter = lock.queue.get(claim.token)
        if waiter is None:
            parker = self._table.parkers.setdefault(claim.token, self.runtime.parker())
            waiter = lock.queue[claim.token] = _Waiter(claim, time.time_ns() // 1000, 0.0, parker)
        # The head sleeps as long as the holder's lease, each one behind it a turn more: an expiry wakes one.
        ahead = sum(other.place < waiter.place for other in lock.queue.values())
        pause = remaining + min(ahead * TURN, claim.expire)
        waiter.until = moment + pause + 2 * TURN
        return Busy(pause, remaining, waiter.place)

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        parker = self._table.parkers.setdefault(claim.token, self.runtime.parker())
        pause = busy.recheck_after if seconds is None else min(busy.recheck_after, seconds)
        await parker.park(pause)
        return await self.acquire(claim, None)

    async def cancel(self, claim: Claim) -> None:
        with self._table.mutex:
            lock = self._lock(claim.name)
            lock.queue.pop(claim.token, None)
            self._table.parkers.pop(claim.token, None)
            if lock.owner is not None and lock.owner.token == claim.token:
                self._let_go(lock)

    async def extend(self, claims: Sequence[Claim], timeout: float | None = None) -> list[Loss | None]:
        moment = now()
        with self._table.mutex:
            losses: list[Loss | None] = []
            for claim in claims:
                lock = self._lock(claim.name)
                loss = self._loss(lock, claim.token)
                if loss is None and lock.owner is not None:
                    lock.owner.until = max(lock.owner.until, moment + claim.expire)
                losses.append(loss)
            return losses

    async def release(self, claim: Claim, cooldown: float = 0.0) -> Loss | None:
        with self._table.mutex:
            lock = self._lock(claim.name)
            loss = self._loss(lock, claim.token)
            if loss is not None:
                return None if lock.released == claim.token else loss
            if cooldown > 0 and lock.owner is not None:
                lock.owner.state, lock.owner.until = "cooldown", now() + cooldown
                lock.owner.token, lock.released = (
                    f"{claim.token}:cooldown",
                    claim.token,
                )  # no late renewal finds its owner
                self._tell_head(lock)
            else:
                self._let_go(lock)
            return None

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        with self._table.mutex:
            lock = self._lock(claim.name)
            if lock.owner is not None and lock.owner.token == transit:
                return None
            loss = self._loss(lock, claim.token)
            if loss is None and lock.owner is not None:
                lock.owner.token, lock.owner.state, lock.owner.until = transit, "transit", now() + seconds
                self._tell_head(lock)
            return loss

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        since = now()
        with self._table.mutex:
            owner = self._lock(claim.name).owner
            if owner is None or owner.token not in (transit, claim.token):
                return None
            owner.token, owner.state, owner.holder = claim.token, "held", claim.holder
            owner.until = since + claim.expire
            return Granted(owner.fence, since)

    async def inspect(self) -> list[LockInfo]:
        moment = now()
        with self._table.mutex:
            held = []
            for name in self._table.locks:
                lock = self._lock(name)
                owner = lock.owner
                if owner is not None:
                    held.append(
                        LockInfo(
                            name, owner.fence, owner.holder, owner.since, owner.until - moment, len(lock.queue),
                            owner.state,
                        )
                    )  # fmt: skip
            return sorted(held, key=lambda line: line.remaining)

    async def revoke(self, name: str, fence: int) -> bool:
        with self._table.mutex:
            lock = self._lock(name)
            if lock.owner is None or lock.owner.fence != fence:
                return False
            lock.revoked = lock.owner.token
            self._let_go(lock)
            lock.released = ""
            return True

    # Under the mutex ---------------------------------------------------------------------------------------------

    def _lock(self, name: str) -> _Lock:
        """The lock of this name, without a lease that has ended and without waiters that are past their time."""
        lock = self._table.locks.setdefault(name, _Lock())
        moment = now()
        if lock.owner is not None and lock.owner.until <= moment:
            lock.owner = None
        for token in [token for token, waiter in lock.queue.items() if waiter.until <= moment]:
            del lock.queue[token]
        return lock

    def _hand_over(self, lock: _Lock, taker: Claim | None) -> bool:
        """Give the free lock to the head of the queue; to the taker if it is the head or nobody waits."""
        head = min(lock.queue, key=lambda token: lock.queue[token].place, default=None)
        moment = now()
        if taker is not None and head in (None, taker.token):
            lock.queue.pop(taker.token, None)
            self._table.parkers.pop(taker.token, None)
            self._own(lock, taker, moment)
            return True
        if head is not None:
            waiter = lock.queue.pop(head)
            self._own(lock, waiter.claim, moment)
            waiter.parker.unpark()
        return False

    def _tell_head(self, lock: _Lock) -> None:
        """A lease that others know of was shortened: the head sleeps for what it was, so let it ask."""
        if lock.queue:
            min(lock.queue.values(), key=lambda waiter: waiter.place).parker.unpark()

    def _own(self, lock: _Lock, claim: Claim, moment: float) -> None:
        lock.last_fence = max(lock.last_fence + 1, time.time_ns() // 1000)
        until = moment + claim.expire
        lock.owner = _Owner(claim.token, lock.last_fence, "held", until, claim.holder, time.time())

    def _let_go(self, lock: _Lock) -> None:
        if lock.owner is not None:
            lock.released = lock.owner.token
            lock.owner = None
        self._hand_over(lock, None)

    def _loss(self, lock: _Lock, token: str) -> Loss | None:
        if lock.owner is not None and lock.owner.token == token:
            return None
        if lock.revoked == token:
            return "revoked"
        return "taken" if lock.owner is not None else "expired"
