"""THE algorithm: take, re-enter, wait, confirm, give back. Written once, as coroutines, for threads and for asyncio.

It awaits nothing but a backend's port and its runtime (see backend.py and runtime.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from . import lifetime, watchdog
from .backend import Busy, Claim, Granted, Port
from .block import Block, innermost
from .errors import BackendUnavailable, DistLockError, LeaseLost, LockBusy, NotHeld
from .hold import Hold
from .holder import Holder
from .runtime import new_token, now

logger = logging.getLogger("distlock_web")
T = TypeVar("T")

#: Seconds between two questions to a store that does not answer while we wait for a lock.
TROUBLE_PAUSE = 0.25


# Taking -------------------------------------------------------------------------------------------------------------


async def acquire(block: Block) -> None:
    """Take or re-enter every name of the block, all or none. ``LockBusy``, ``LeaseLost`` or ``BackendUnavailable``."""
    spec = block.spec
    port = spec.store.port(block.runtime)
    clock = _Clock(spec.wait)
    try:
        for name in spec.names:
            if not await _reenter(block, port, name, clock):
                await _take(block, port, name, clock)
        if len(block.own) > 1 and clock.waited:
            await _extend(port, block.own, None)
        for hold in block.holds:
            hold.raise_if_lost()  # while the others were taken, or while the answer was on its way
        watchdog.tend(block)
        _warn_if_in_transaction(block)
    except BaseException:
        block.begin_end()
        await block.runtime.finish(give_back(block, port))
        raise
    block.enter()


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


async def _take(block: Block, port: Port, name: str, clock: _Clock) -> None:
    """Take one name from the store, waiting in its queue if the caller has time."""
    spec = block.spec
    claim = Claim(name, new_token(), spec.expire, Holder.current(spec.what, spec.expire))
    queued = clock.wait != 0
    try:
        answer = await twice(lambda: port.take(claim, clock.wait))
        if isinstance(answer, Busy) and queued:
            clock.waited = True
            with watchdog.keeping(block.holds):
                answer = await _queue(port, claim, answer, clock, block.holds)
    except BaseException:
        # The answer may be on its way, or we are in the queue: nothing of this claim may stay behind.
        await block.runtime.finish(undo(port, claim))
        raise
    if isinstance(answer, Busy):
        raise busy(name, answer.remaining)
    block.own.append(Hold(spec.store, claim, answer))


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
            answer = Busy(TROUBLE_PAUSE, last.remaining, last.place)
    return answer


async def _reenter(block: Block, port: Port, name: str, clock: _Clock) -> bool:
    """Enter a lock that the call chain holds already: no round trip, unless a longer lease is asked for."""
    found = innermost(block.spec.store, name)
    if found is None:
        return False
    outer, hold = found
    hold.raise_if_lost()
    seat = outer.seat(hold)
    taken = await seat.take(block.runtime, clock.left())
    if taken == "busy":
        raise busy(name, hold.remaining)
    if taken == "closed":
        return await _reenter(block, port, name, clock)
    hold.depth += 1
    block.nested.append((hold, seat))
    hold.raise_if_lost()
    if block.spec.expire > hold.claim.expire:
        await _extend(port, [hold], block.spec.expire)
        hold.claim = hold.claim._replace(expire=block.spec.expire)
    return True


def busy(name: str, remaining: float) -> LockBusy:
    return LockBusy(f"Somebody else holds the lock {name!r}.", name=name, retry_after=remaining)


# Giving back --------------------------------------------------------------------------------------------------------


async def end(block: Block, error: BaseException | None) -> None:
    """The block is over: give back what it took, once, whatever happens, and never hide the block's own exception."""
    # A nested block in a task of its own may outlive the one that lent it the lock: from then on it was unguarded.
    orphaned = block.orphaned()
    if not block.begin_end():
        return
    work = give_back(block, block.spec.store.port(block.runtime), kept=error is None)
    try:
        # A block that only re-entered has nothing to send, so nothing to shield.
        await (block.runtime.finish(work) if block.own else work)
    except DistLockError as trouble:
        # The work was done under the lock, and the lease ends by itself: no reason to fail the caller.
        logger.warning("Lock %s could not be given back, it ends within its lease: %s", names_of(block), trouble)
    lost = block.lost_hold() or orphaned
    if lost is None:
        if error is None:
            _warn_if_in_transaction(block)
        return
    ours = block.take_back_cancellation()
    if error is None:
        _say_lost(block, lost.lost_error())
    elif isinstance(error, asyncio.CancelledError) and ours:
        raise lost.lost_error() from error
    elif not isinstance(error, LeaseLost):
        error.add_note(f"distlock_web: {lost.lost_error()}")


def _say_lost(block: Block, loss: LeaseLost) -> None:
    if block.spec.on_lost in ("raise", "cancel"):
        raise loss
    logger.warning("%s Its block has finished all the same.", loss)


def _warn_if_in_transaction(block: Block) -> None:
    if block.own and not block.warned and lifetime.open_transactions:
        block.warned = lifetime.warn_if_in_transaction(block.spec)


async def release(block: Block) -> None:
    """Give back by hand. Raises what :func:`end` only logs."""
    if not block.begin_end():
        raise NotHeld(f"The lease of {names_of(block)} is over already.", name=names_of(block))
    await block.runtime.finish(give_back(block, block.spec.store.port(block.runtime), kept=True))
    for hold in block.holds:
        if hold.state == "lost":
            raise hold.lost_error()
    _warn_if_in_transaction(block)


async def give_back(block: Block, port: Port, kept: bool = False) -> None:
    """Release every own hold, the last one first, and leave the seats of the others; then raise the first trouble."""
    if block.stop_renewing is not None:
        block.stop_renewing()
    for hold, seat in block.nested:
        block.untell(hold)
        hold.depth -= 1
        seat.leave()
    trouble: DistLockError | None = None
    for hold in reversed(block.own):
        if not hold.begin_release():
            continue
        keep = max(0.0, hold.since + block.spec.hold_for - now()) if kept and block.spec.hold_for else 0.0
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
        await twice(lambda: port.withdraw(claim))
    except DistLockError as error:
        logger.info("Lock %s: a claim could not be withdrawn, it ends within its lease: %s", claim.name, error)


# In between ---------------------------------------------------------------------------------------------------------


async def extend(block: Block, expire: float | None) -> None:
    """Extend every hold of the block; ``LeaseLost`` if one is gone."""
    if not block.alive:
        raise NotHeld(f"The lease of {names_of(block)} is over.", name=names_of(block))
    for hold in block.holds:
        hold.raise_if_lost()
    if block.holds:  # none: the call was let through without a lock
        await _extend(block.spec.store.port(block.runtime), block.holds, expire)


async def _extend(port: Port, holds: list[Hold], expire: float | None) -> None:
    claims = [hold.claim if expire is None else hold.claim._replace(expire=expire) for hold in holds]
    since = now()
    losses = await twice(lambda: port.extend(claims))
    for hold, claim, loss in zip(holds, claims, losses, strict=True):
        if loss is None:
            hold.renewed(since, claim.expire)
        else:
            hold.lose(loss)
        hold.raise_if_lost()


async def twice(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again, once, if the answer did not come: every verb may be sent twice (law 3)."""
    try:
        return await ask()
    except BackendUnavailable:
        return await ask()


def names_of(block: Block) -> str:
    """The block's locks, for messages."""
    return ", ".join(repr(name) for name in block.spec.names)
