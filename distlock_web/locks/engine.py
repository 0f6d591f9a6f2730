"""THE algorithm: take, re-enter, wait, confirm, give back. Written once, as coroutines, for threads and for asyncio.

It awaits nothing but a backend's port and its runtime (see backend.py and runtime.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ..core.backend import Busy, Claim, Granted, Port
from ..core.errors import BackendUnavailable, DistLockError, LeaseLost, LockBusy, NotHeld
from ..core.holder import HolderInfo
from ..core.runtime import new_token, now
from . import hooks, watchdog
from .hold import Hold
from .scope import Scope, find_enclosing

logger = logging.getLogger("distlock_web")
T = TypeVar("T")

#: Seconds between two questions to a store that does not answer while we wait for a lock.
TROUBLE_PAUSE = 0.25


# Taking -------------------------------------------------------------------------------------------------------------


async def acquire(scope: Scope) -> None:
    """Take or re-enter every name of the scope, all or none. ``LockBusy``, ``LeaseLost`` or ``BackendUnavailable``."""
    spec = scope.spec
    port = spec.store.port(scope.runtime)
    clock = _Clock(spec.wait)
    try:
        for name in spec.names:
            if not await _reenter(scope, port, name, clock):
                await _take(scope, port, name, clock)
        if len(scope.own) > 1 and clock.waited:
            await _extend(port, scope.own, None)
        for hold in scope.holds:
            hold.raise_if_lost()  # while the others were taken, or while the answer was on its way
        watchdog.register(scope)
        _warn_if_in_transaction(scope)
    except BaseException:
        scope.close_once()
        await scope.runtime.shield(release_all(scope, port))
        raise
    scope.enter()


class _Clock:
    """What is left of the time the caller wants to wait, over all names."""

    __slots__ = ("_until", "wait", "waited")

    def __init__(self, wait: float | None) -> None:
        self.wait = wait
        self.waited = False
        self._until = now() + wait if wait else None

    def left(self) -> float | None:
        if self._until is None:
            return self.wait
        return max(0.0, self._until - now())


async def _take(scope: Scope, port: Port, name: str, clock: _Clock) -> None:
    """Take one name from the store, waiting in its queue if the caller has time."""
    spec = scope.spec
    claim = Claim(name, new_token(), spec.expire, HolderInfo.current(spec.what, spec.expire))
    queued = clock.wait != 0
    try:
        answer = await retry_once(lambda: port.acquire(claim, clock.wait))
        if isinstance(answer, Busy) and queued:
            clock.waited = True
            with watchdog.keep_alive(scope.holds):
                answer = await _queue(port, claim, answer, clock, scope.holds)
    except BaseException:
        # The answer may be on its way, or we are in the queue: nothing of this claim may stay behind.
        await scope.runtime.shield(undo(port, claim))
        raise
    if isinstance(answer, Busy):
        raise busy(name, answer.remaining)
    scope.own.append(Hold(spec.store, claim, answer))


async def _queue(port: Port, claim: Claim, answer: Granted | Busy, clock: _Clock, holds: Sequence[Hold]) -> Granted:
    """Wait for our turn. A store that stops answering meanwhile is asked again for one lease, then given up.

    ``LeaseLost`` if one of the locks that are held already is lost meanwhile.
    """
    trouble: float | None = None
    while isinstance(answer, Busy):
        for hold in holds:
            hold.raise_if_lost()
        left, last = clock.left(), answer
        if left is not None and left <= 0:
            raise busy(claim.name, last.remaining)
        try:
            answer = await port.wait(claim, last, left)
            trouble = None
        except BackendUnavailable:
            trouble = trouble or now()
            if now() - trouble > claim.expire or (left is not None and left <= TROUBLE_PAUSE):
                raise
            answer = Busy(TROUBLE_PAUSE, last.remaining, last.position)
    return answer


async def _reenter(scope: Scope, port: Port, name: str, clock: _Clock) -> bool:
    """Enter a lock that the call chain holds already: no round trip, unless a longer lease is asked for."""
    found = find_enclosing(scope.spec.store, name)
    if found is None:
        return False
    outer, hold = found
    hold.raise_if_lost()
    seat = outer.seat(hold)
    taken = await seat.take(scope.runtime, clock.left())
    if taken == "busy":
        raise busy(name, hold.remaining)
    if taken == "closed":
        return await _reenter(scope, port, name, clock)
    hold.depth += 1
    scope.nested.append((hold, seat))
    hold.raise_if_lost()
    if scope.spec.expire > hold.claim.expire:
        await _extend(port, [hold], scope.spec.expire)
        hold.claim = hold.claim._replace(expire=scope.spec.expire)
    return True


def busy(name: str, remaining: float) -> LockBusy:
    return LockBusy(f"Somebody else holds the lock {name!r}.", name=name, retry_after=remaining)


# Giving back --------------------------------------------------------------------------------------------------------


async def end(scope: Scope, error: BaseException | None) -> None:
    """The scope is over: give back what it took, once, whatever happens, and never hide the scope's own exception."""
    # A nested scope in a task of its own may outlive the one that lent it the lock: from then on it was unguarded.
    orphaned = scope.orphaned()
    if not scope.close_once():
        return
    work = release_all(scope, scope.spec.store.port(scope.runtime), kept=error is None)
    try:
        # A scope that only re-entered has nothing to send, so nothing to shield.
        await (scope.runtime.shield(work) if scope.own else work)
    except DistLockError as trouble:
        # The work was done under the lock, and the lease ends by itself: no reason to fail the caller.
        logger.warning("Lock %s could not be given back, it ends within its lease: %s", names_of(scope), trouble)
    lost = scope.lost_hold() or orphaned
    if lost is None:
        if error is None:
            _warn_if_in_transaction(scope)
        return
    ours = scope.take_back_cancellation()
    if error is None:
        _say_lost(scope, lost.lost_error())
    elif isinstance(error, asyncio.CancelledError) and ours:
        raise lost.lost_error() from error
    elif not isinstance(error, LeaseLost):
        error.add_note(f"distlock_web: {lost.lost_error()}")


def _say_lost(scope: Scope, loss: LeaseLost) -> None:
    if scope.spec.on_lost in ("raise", "cancel"):
        raise loss
    logger.warning("%s Its scope has finished all the same.", loss)


def _warn_if_in_transaction(scope: Scope) -> None:
    if scope.own and not scope.warned and hooks.open_transactions:
        scope.warned = hooks.warn_if_in_transaction(scope.spec)


async def release(scope: Scope) -> None:
    """Give back by hand. Raises what :func:`end` only logs."""
    if not scope.close_once():
        raise NotHeld(f"The lease of {names_of(scope)} is over already.", name=names_of(scope))
    await scope.runtime.shield(release_all(scope, scope.spec.store.port(scope.runtime), kept=True))
    for hold in scope.holds:
        if hold.state == "lost":
            raise hold.lost_error()
    _warn_if_in_transaction(scope)


async def release_all(scope: Scope, port: Port, kept: bool = False) -> None:
    """Release every own hold, the last one first, and leave the seats of the others; then raise the first trouble."""
    if scope.stop_renewing is not None:
        scope.stop_renewing()
    for hold, seat in scope.nested:
        scope.stop_notifying(hold)
        hold.depth -= 1
        seat.leave()
    trouble: DistLockError | None = None
    for hold in reversed(scope.own):
        if not hold.begin_release():
            continue
        keep = max(0.0, hold.since + scope.spec.hold_at_least - now()) if kept and scope.spec.hold_at_least else 0.0
        try:
            loss = await _release(port, hold.claim, keep)
        except DistLockError as error:
            trouble = trouble or error
            loss = "unreachable" if now() >= hold.deadline else None
        if loss is None:
            hold.released()
        else:
            hold.lose(loss)
    if trouble is not None:
        raise trouble


async def _release(port: Port, claim: Claim, keep: float) -> str | None:
    try:
        return await port.release(claim, keep)
    except BackendUnavailable:
        # The first release may have been done and its answer lost: then "not yours" is no loss.
        await port.release(claim, keep)
        return None


async def undo(port: Port, claim: Claim) -> None:
    try:
        await retry_once(lambda: port.cancel(claim))
    except DistLockError as error:
        logger.info("Lock %s: a claim could not be withdrawn, it ends within its lease: %s", claim.name, error)


# In between ---------------------------------------------------------------------------------------------------------


async def extend(scope: Scope, expire: float | None) -> None:
    """Extend every hold of the scope; ``LeaseLost`` if one is gone."""
    if not scope.alive:
        raise NotHeld(f"The lease of {names_of(scope)} is over.", name=names_of(scope))
    for hold in scope.holds:
        hold.raise_if_lost()
    if scope.holds:  # none: the call was let through without a lock
        await _extend(scope.spec.store.port(scope.runtime), scope.holds, expire)


async def _extend(port: Port, holds: list[Hold], expire: float | None) -> None:
    claims = [hold.claim if expire is None else hold.claim._replace(expire=expire) for hold in holds]
    since = now()
    losses = await retry_once(lambda: port.extend(claims))
    for hold, claim, loss in zip(holds, claims, losses, strict=True):
        if loss is None:
            hold.renewed(since, claim.expire)
        else:
            hold.lose(loss)
        hold.raise_if_lost()


async def retry_once(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again, once, if the answer did not come: every verb may be sent retry_once (law 3)."""
    try:
        return await ask()
    except BackendUnavailable:
        return await ask()


def names_of(scope: Scope) -> str:
    """The scope's locks, for messages."""
    return ", ".join(repr(name) for name in scope.spec.names)
