"""The algorithm: acquire, re-enter, wait, release, extend. Written once, as coroutines, for threads and for asyncio.

It awaits nothing but a store's port and its runtime (``core/backend.py``, ``core/runtime.py``). The outcomes:

    ask       answer of the port        what happens
    -------   -----------------------   -----------------------------------------------------------------------------
    acquire   Granted                   a hold is added to the scope
              Busy, and wait is 0       LockBusy
              Busy, and there is time   in the queue: wait
    wait      Granted                   a hold is added to the scope
              Busy                      wait again; when the time is over: cancel, LockBusy
              BackendUnavailable        wait again, for one lease at most
    extend    None                      the deadline moves; a hold that was unsure is held again
              a Loss                    the hold is lost: LeaseLost
    release   None                      the hold is released
              a Loss                    the hold is lost: LeaseLost at the end of the block, as on_lost says
              BackendUnavailable        at the end of a block: logged, for the lease ends by itself; else raised
    any       BackendUnavailable        asked once more; if there is no answer again, an acquisition is cancelled

A scope has all of its names or none: what makes one fail gives the others back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeAlias, TypeVar

from ..core.backend import Busy, Claim, Granted, Port
from ..core.errors import BackendUnavailable, DistLockError, LeaseLost, LockBusy, NotHeld
from ..core.holder import HolderInfo
from ..core.runtime import new_token, now
from . import chain, watchdog
from .hold import Hold
from .scope import Scope, names_of

logger = logging.getLogger("distlock_web")
P = ParamSpec("P")
T = TypeVar("T")

#: How a name is asked for.
Ask: TypeAlias = "Callable[[Port, Claim], Awaitable[Granted | Busy]]"

#: Seconds between two questions to a store that does not answer while we wait for a lock.
UNREACHABLE_RECHECK_SECONDS = 0.25


# Acquire ------------------------------------------------------------------------------------------------------------


async def acquire(scope: Scope) -> None:
    """Take or re-enter every name of the scope, all or none. ``LockBusy``, ``LeaseLost`` or ``BackendUnavailable``."""
    clock = _WaitClock(scope.spec.wait)

    async def ask(port: Port, claim: Claim) -> Granted | Busy:
        answer = await retry_once(port.acquire, claim, clock.wait)
        if isinstance(answer, Busy) and clock.wait != 0:
            with watchdog.keep_alive(scope.holds):
                return await _queue(port, claim, answer, clock, scope.holds)
        return answer

    await begin(scope, ask, clock)


class _WaitClock:
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

    def start_waiting(self) -> float | None:
        self.waited = True
        return self.left()


async def begin(scope: Scope, ask: Ask, clock: _WaitClock | None = None) -> None:
    """Take every name of the scope by asking so, all or none, and go inside of it.

    ``clock`` is for re-entering those that the call chain holds; what was handed over is none of them.
    """
    spec = scope.spec
    port = spec.store.port(scope.runtime)
    try:
        for name in spec.names:
            enclosed = clock is not None and chain.find_enclosing(spec.store, name) is not None
            if clock is None or not enclosed or not await _reenter(scope, port, name, clock):
                await _take(scope, port, name, ask)
        if clock is not None and clock.waited and len(scope.acquired) > 1:
            await _extend(port, scope.acquired, None)
        for hold in scope.holds:
            hold.raise_if_lost()  # while the others were taken, or while the answer was on its way
        watchdog.register(scope)
        scope.warn_once()
    except BaseException:
        scope.close_once()
        await scope.runtime.shield(release_all(scope, port))
        raise
    chain.enter(scope)


async def _take(scope: Scope, port: Port, name: str, ask: Ask) -> None:
    """Take one name from the store, with a fresh claim."""
    spec = scope.spec
    claim = Claim(name, new_token(), spec.expire, HolderInfo.current(spec.function, spec.expire))
    try:
        answer = await ask(port, claim)
    except BaseException:
        # The answer may be on its way, or we are in the queue: nothing of this claim may stay behind.
        await scope.runtime.shield(undo(port, claim))
        raise
    if isinstance(answer, Busy):
        raise _busy(name, answer.remaining)
    scope.add(Hold(spec.store, claim, answer))


async def _queue(port: Port, claim: Claim, answer: Busy, clock: _WaitClock, holds: Sequence[Hold]) -> Granted:
    """Wait for our turn. A store that stops answering meanwhile is asked again for one lease, then given up.

    ``LeaseLost`` if one of the locks that are held already is lost meanwhile.
    """
    unreachable_since: float | None = None
    left = clock.start_waiting()
    while True:
        for hold in holds:
            hold.raise_if_lost()
        if left is not None and left <= 0:
            raise _busy(claim.name, answer.remaining)
        try:
            asked = await port.wait(claim, answer, left)
            unreachable_since = None
        except BackendUnavailable:
            unreachable_since = unreachable_since or now()
            over = left is not None and left <= UNREACHABLE_RECHECK_SECONDS
            if over or now() - unreachable_since > claim.expire:
                raise
            asked = Busy(UNREACHABLE_RECHECK_SECONDS, answer.remaining, answer.position)
        if isinstance(asked, Granted):
            return asked
        answer, left = asked, clock.left()


async def _reenter(scope: Scope, port: Port, name: str, clock: _WaitClock) -> bool:
    """Enter a lock that the call chain holds already: no round trip, unless a longer lease is asked for."""
    while (found := chain.find_enclosing(scope.spec.store, name)) is not None:
        outer, hold = found
        hold.raise_if_lost()
        gate = outer.gate(hold)
        turn = await gate.enter(scope.runtime, clock.left())
        if turn == "busy":
            raise _busy(name, hold.remaining)
        if turn == "closed":
            continue  # the block around us has ended meanwhile
        scope.reenter(hold, gate)
        hold.raise_if_lost()
        if scope.spec.expire > hold.claim.expire:
            await _extend(port, [hold], scope.spec.expire)
            hold.want(scope.spec.expire)
        return True
    return False


def _busy(name: str, remaining: float) -> LockBusy:
    return LockBusy(f"Somebody else holds the lock {name!r}.", name=name, retry_after=remaining)


# Release ------------------------------------------------------------------------------------------------------------


async def end(scope: Scope, error: BaseException | None) -> None:
    """The scope is over: give back what it took, once, whatever happens, and never hide the block's own exception."""
    # A nested scope in a task of its own may outlive the one whose lock it re-entered: from then on it had no lock.
    orphaned = scope.orphaned()
    if not close(scope):
        return
    work = release_all(scope, scope.spec.store.port(scope.runtime), success=error is None)
    try:
        # A scope that only re-entered has nothing to send, so nothing to shield.
        await (scope.runtime.shield(work) if scope.acquired else work)
    except DistLockError as failure:
        # The work was done under the lock, and the lease ends by itself: no reason to fail the caller.
        logger.warning("Lock %s could not be given back, it ends within its lease: %s", names_of(scope), failure)
    lost = scope.lost_hold() or orphaned
    if lost is not None:
        _tell_of_loss(scope, lost.lost_error(), error)
    elif error is None:
        scope.warn_once()


def _tell_of_loss(scope: Scope, loss: LeaseLost, error: BaseException | None) -> None:
    ours = scope.take_back_cancellation()
    if error is None:
        if scope.spec.on_lost in ("raise", "cancel"):
            raise loss
        logger.warning("%s Its block has finished all the same.", loss)
    elif isinstance(error, asyncio.CancelledError) and ours:
        raise loss from error
    elif not isinstance(error, LeaseLost):
        error.add_note(f"distlock_web: {loss}")


async def release(scope: Scope) -> None:
    """Give back by hand. Raises what :func:`end` only logs."""
    if not close(scope):
        raise NotHeld(f"The lease of {names_of(scope)} is over already.", name=names_of(scope))
    await scope.runtime.shield(release_all(scope, scope.spec.store.port(scope.runtime), success=True))
    for hold in scope.holds:
        if hold.state == "lost":
            raise hold.lost_error()
    scope.warn_once()


def close(scope: Scope) -> bool:
    """End the scope, and go out of it. True for exactly one caller."""
    if not scope.close_once():
        return False
    chain.leave(scope)
    return True


async def release_all(scope: Scope, port: Port, success: bool = False) -> None:
    """Release every acquired hold, the last one first, and leave the re-entered ones; then raise the first failure."""
    scope.stop_watching()
    scope.leave_gates()
    failure: DistLockError | None = None
    hold_at_least = scope.spec.hold_at_least if success else 0.0
    for hold in reversed(scope.acquired):
        if not hold.begin_release():
            continue
        cooldown = max(0.0, hold.since + hold_at_least - now()) if hold_at_least else 0.0
        try:
            loss = await _release(port, hold.claim, cooldown)
        except DistLockError as error:
            failure = failure or error
            loss = "unreachable" if now() >= hold.deadline else None
        if loss is None:
            hold.released()
        else:
            hold.lose(loss)
    if failure is not None:
        raise failure


async def _release(port: Port, claim: Claim, cooldown: float) -> str | None:
    try:
        return await port.release(claim, cooldown)
    except BackendUnavailable:
        # The first release may have been done and its answer lost: then "not yours" is no loss.
        await port.release(claim, cooldown)
        return None


async def undo(port: Port, claim: Claim) -> None:
    """Nothing of this claim stays behind, neither in the queue nor held."""
    try:
        await retry_once(port.cancel, claim)
    except DistLockError as error:
        logger.info("Lock %s: a claim could not be cancelled, it ends within its lease: %s", claim.name, error)


# Extend -------------------------------------------------------------------------------------------------------------


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
    losses = await retry_once(port.extend, claims)
    for hold, claim, loss in zip(holds, claims, losses, strict=True):
        if loss is None:
            hold.renewed(since, claim.expire)
        else:
            hold.lose(loss)
        hold.raise_if_lost()


async def retry_once(verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask again, once, if the answer did not come: every verb may be sent twice (law 3)."""
    try:
        return await verb(*args, **kwargs)
    except BackendUnavailable:
        return await verb(*args, **kwargs)
