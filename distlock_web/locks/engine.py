"""The algorithm: acquire, re-enter, wait, release, extend. Written once, as coroutines, for threads and for asyncio.

It awaits nothing but a store's port (``core/backend.py``), its runtime (``core/runtime.py``) and, to re-enter, the gate
of a hold (``reentry.py``). The outcomes:

    verb      answer of the port        what happens
    -------   -----------------------   -----------------------------------------------------------------------------
    acquire   Granted                   a hold is added to the scope
              Busy, and wait is 0       LockBusy
              Busy, and there is time   in the queue: wait
    wait      Granted                   a hold is added to the scope
              Busy, and there is time   wait again
              Busy, the time is over    acquire once more without queueing: Granted, or cancel and LockBusy
              BackendUnavailable        wait again, for one lease at most
    extend    None                      the deadline moves; a hold that was unsure is held again
              a Loss                    the hold is lost: LeaseLost
    release   None                      the hold is released
              a Loss                    the hold is lost: LeaseLost at the end of the block, as on_lost says
              a Loss, asked again       revoked is a loss; expired and taken may be the first release: a warning
              BackendUnavailable        at the end of a block: logged, for the lease ends by itself; else raised
    any       BackendUnavailable        asked once more; if there is no answer again, an acquisition is cancelled

A scope has all of its names or none: if one fails, the others are released (``release.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from ..core.backend import Busy, Claim, Granted, Port
from ..core.errors import BackendUnavailable, DistLockError, LeaseLost
from ..core.runtime import TASKS, THREADS, Runtime, drive, new_token, now
from . import chain, events, watchdog
from .extension import extend_holds
from .hold import Hold
from .log_fields import of_scope
from .refusal import busy_error, claimant, tell_of_refusal
from .release import cancel_quietly, clean_up_after, release_all, retry_once, run_to_completion
from .scope import Scope, names_of

logger = logging.getLogger("distlock_web")

#: How a name is asked for: one or more verbs of the port.
Ask: TypeAlias = "Callable[[Port, Claim], Awaitable[Granted | Busy]]"

#: Seconds between two questions to a store that does not answer while we wait for a lock.
UNREACHABLE_RECHECK_SECONDS = 0.25
#: Seconds to pause after a question that was refused sooner than that.
REFUSED_PAUSE = 0.05


# Acquire ------------------------------------------------------------------------------------------------------------


async def acquire(scope: Scope) -> None:
    """Take or re-enter every name of the scope, all or none. ``LockBusy``, ``LeaseLost`` or ``BackendUnavailable``."""
    spec, clock = scope.spec, _WaitClock(scope.spec.wait)
    port = spec.store.port(scope.runtime)

    async def ask(port: Port, claim: Claim) -> Granted | Busy:
        answer = await retry_once(port.acquire, claim, clock.wait)
        if isinstance(answer, Busy) and clock.wait != 0:
            begun = now()
            try:
                with watchdog.keep_alive(scope.holds):
                    return await _queue(scope, port, claim, answer, clock)
            finally:
                scope.note_waited(now() - begun)
        return answer

    try:
        for name in spec.names:
            scope.note_waited(0.0)
            if chain.find_enclosing(spec.store, name) is None or not await _reenter(scope, port, name, clock):
                await _take(scope, port, name, ask)
        if clock.waited and scope.acquired and len(scope.holds) > 1:
            # The first leases have aged while the others were awaited, and the store may have lost one of them, to a
            # failover or by force: the block begins only when it has confirmed all, each with a full lease.
            await extend_holds(port, scope.acquired, None)
        _begin(scope)
    except BaseException as error:
        await abort(scope, error)
        tell_of_refusal(scope, error)
        raise


async def attach(scope: Scope, ask: Ask) -> None:
    """Take every name of the scope by asking so, all or none. What was handed over is never re-entered."""
    port = scope.spec.store.port(scope.runtime)
    try:
        for name in scope.spec.names:
            await _take(scope, port, name, ask, "attached")
        _begin(scope)
    except BaseException as error:
        await abort(scope, error)
        tell_of_refusal(scope, error)
        raise


def _begin(scope: Scope) -> None:
    """Every name is ours: the block begins, and the running code is inside of it."""
    scope.raise_if_lost()  # while the others were taken, or while the answer was on its way
    watchdog.register(scope)
    scope.warn_once()
    chain.enter(scope)


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


async def _take(scope: Scope, port: Port, name: str, ask: Ask, how: str = "") -> None:
    """Take one name from the store, with a fresh claim. ``how``, for the event, where it was not free before."""
    spec = scope.spec
    claim = Claim(name, new_token(spec.store.ident), spec.expire, claimant(scope))
    try:
        answer = await ask(port, claim)
        if isinstance(answer, Granted):
            hold = Hold(spec.store, claim, answer, spec.template, scope.waited)
            scope.add(hold)
    except BaseException as error:
        # The answer may be on its way, or we are in the queue: nothing of this claim may stay behind.
        await clean_up_after(error, scope, lambda port: cancel_quietly(scope, port, claim))
        raise
    if isinstance(answer, Busy):
        raise busy_error(scope.spec, name, answer)
    if events.listeners:
        if hold.waited:
            hold.tell("waited")
        hold.tell("acquired", how)


async def _queue(scope: Scope, port: Port, claim: Claim, answer: Busy, clock: _WaitClock) -> Granted:
    """Wait for our turn. A store that stops answering meanwhile is asked again for one lease, then given up.

    ``LeaseLost`` if one of the locks that are held already is lost meanwhile.
    """
    unreachable_since: float | None = None
    left = clock.start_waiting()
    while True:
        scope.raise_if_lost()
        if left is not None and left <= 0:
            # What we know is from before we slept: the lock may be free, for nobody tells of a lease that ended.
            last = await retry_once(port.acquire, claim, 0.0)
            if isinstance(last, Granted):
                return last
            raise busy_error(scope.spec, claim.name, last)
        begun = now()
        try:
            asked = await port.wait(claim, answer, left)
            unreachable_since = None
        except BackendUnavailable:
            unreachable_since = unreachable_since or now()
            over = left is not None and left <= UNREACHABLE_RECHECK_SECONDS
            if over or now() - unreachable_since > claim.expire:
                raise
            asked = answer._replace(recheck_after=UNREACHABLE_RECHECK_SECONDS)
            if now() - begun < REFUSED_PAUSE:  # without any sleep: it would go on so, and an event loop stand still
                await scope.runtime.parker().park(REFUSED_PAUSE)
        if isinstance(asked, Granted):
            return asked
        answer, left = asked, clock.left()


_STILL_INSIDE = (
    " This call chain took it in an earlier lease, which was lost and never released, so it cannot enter it again: "
    "leave that lease's block, or call its release() (which raises LeaseLost), and then take the lock anew."
)


async def _reenter(scope: Scope, port: Port, name: str, clock: _WaitClock) -> bool:
    """Enter a lock that the call chain holds already: no round trip, unless a longer lease is asked for."""
    while (found := chain.find_enclosing(scope.spec.store, name)) is not None:
        outer, hold = found
        hold.raise_if_lost(_STILL_INSIDE)
        gate = outer.gate(hold)
        turn = gate.try_enter()
        if turn == "busy" and clock.wait != 0:
            with watchdog.keep_alive(scope.holds):
                turn = await gate.enter(scope.runtime, clock.start_waiting())
        if turn == "busy":
            raise busy_error(
                scope.spec,
                name,
                Busy(hold.remaining, hold.remaining, holder=hold.claim.holder, held_for=now() - hold.since),
            )
        if turn == "closed":
            continue  # the block around us has ended meanwhile
        scope.reenter(hold, gate)
        hold.raise_if_lost(_STILL_INSIDE)
        if scope.spec.expire > hold.claim.expire:
            await extend_holds(port, [hold], scope.spec.expire)
            hold.renew_to(scope.spec.expire)
        return True
    return False


# Release ------------------------------------------------------------------------------------------------------------


async def end(scope: Scope, error: BaseException | None, runtime: Runtime = TASKS) -> None:
    """The scope is over: release what it took, once, whatever happens, and never hide the block's own exception."""
    # A nested scope in a task of its own may outlive the one whose lock it re-entered: from then on it had no lock.
    orphaned = scope.orphaned()
    if not close(scope, runtime):
        return
    try:
        await _send_releases(scope, success=error is None)
    except DistLockError as failure:
        # The work was done under the lock, and the lease ends by itself: no reason to fail the caller.
        logger.warning(
            "Lock %s could not be released, it ends within its lease: %s",
            names_of(scope),
            failure,
            extra=of_scope("error", scope, reason="release"),
        )
    except Exception as failure:
        if error is None:
            raise
        logger.exception(
            "Lock %s could not be released, it ends within its lease",
            names_of(scope),
            extra=of_scope("error", scope, reason="release"),
        )
        error.add_note(f"distlock_web: could not be released: {failure}")
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
        fields = of_scope("lost", scope, reason=loss.reason)
        logger.warning("%s Its block has finished all the same.", loss, extra=fields)
    elif isinstance(error, asyncio.CancelledError) and ours:
        raise loss from error
    elif not isinstance(error, LeaseLost):
        error.add_note(f"distlock_web: {loss}")


async def release(scope: Scope, runtime: Runtime = TASKS) -> None:
    """Release by hand. Raises what :func:`end` only logs."""
    orphaned = scope.orphaned()
    if not close(scope, runtime):
        raise scope.over_error()
    await _send_releases(scope, success=True)
    lost = scope.lost_hold() or orphaned
    if lost is not None:
        raise lost.lost_error()
    scope.warn_once()


def release_now(scope: Scope) -> None:
    """:func:`release` for blocking callers: a signal's exception anywhere in it does not leave the lock held."""
    try:
        drive(release(scope, THREADS))
    except DistLockError:
        raise
    except BaseException as interruption:
        scope.use_runtime(THREADS)
        drive(_leave_nothing(scope, interruption))
        raise


async def _send_releases(scope: Scope, success: bool) -> None:
    if scope.acquired:
        await run_to_completion(scope, partial(release_all, scope, success=success))
    else:  # it only re-entered: there is nothing to send, so nothing to shield
        await release_all(scope, scope.spec.store.port(scope.runtime))


def end_now(scope: Scope, error: BaseException | None) -> None:
    """:func:`end` for blocking callers: a signal's exception anywhere in it does not leave the lock held."""
    try:
        drive(end(scope, error, THREADS))
    except BaseException as interruption:
        scope.use_runtime(THREADS)
        drive(abort(scope, interruption))
        raise


async def abort(scope: Scope, error: BaseException) -> None:
    """The block does not begin, or its end was interrupted: nothing of it stays. The caller raises ``error`` then."""
    chain.exit_block(scope)
    await _leave_nothing(scope, error)


async def _leave_nothing(scope: Scope, error: BaseException) -> None:
    close(scope, scope.runtime)
    scope.stop_watching()
    scope.leave_gates()
    if scope.acquired:
        await clean_up_after(error, scope, partial(release_all, scope))


def close(scope: Scope, runtime: Runtime) -> bool:
    """End the scope in this runtime, wherever it began, and go out of it. True for exactly one caller."""
    if not scope.close_once():
        return False
    scope.use_runtime(runtime)
    chain.leave(scope)
    return True


# Extend -------------------------------------------------------------------------------------------------------------


async def extend(scope: Scope, expire: float | None, runtime: Runtime = TASKS) -> None:
    """Extend every hold of the scope; ``LeaseLost`` if one is gone."""
    scope.check_usable()
    if scope.holds:  # none: the call was let through without a lock
        await extend_holds(scope.spec.store.port(runtime), scope.holds, expire)
