"""The algorithm: acquire, re-enter, wait. Written once, as coroutines, for threads and for asyncio.

It awaits nothing but a store's port (``core/backend.py``), its runtime (``core/runtime.py``) and, to re-enter, the gate
of a hold. The outcomes:

    verb      answer of the port        what happens
    -------   -----------------------   -----------------------------------------------------------------------------
    acquire   Granted                   a hold is added to the scope
              Busy, and wait is 0       LockBusy
              Busy, and full            LockBusy: as many wait as ``max_waiters`` lets
              Busy, and there is time   in the queue: wait
              Busy, with a record       LockBusy with the record, at once: it is done, and its queue is empty
    wait      Granted                   a hold is added to the scope
              Busy, with a record       LockBusy with the record
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

A scope has all of its names or none: if one fails, the others are released. How a scope ends stands in ``ending.py``,
what is extended in ``watchdog.py``.
"""

from __future__ import annotations

from contextlib import nullcontext

from ..core import integrations
from ..core.backend import Busy, Claim, Granted, Port, retry_once
from ..core.errors import BackendUnavailable, NotSent
from ..core.runtime import new_token, now
from . import events, handover, watchdog
from .completion import cancel_quietly, undo
from .ending import abort
from .handover import Ticket
from .open_transaction import warn_once
from .reentry import chain
from .reentry.entering import enter_again
from .refused import busy_error, tell_of_rejection
from .scope import Scope

#: Seconds between two questions to a store that does not answer while we wait for a lock.
UNREACHABLE_RECHECK_SECONDS = 0.25
#: Seconds to pause after a question that was refused sooner than that.
REFUSED_PAUSE = 0.05


async def acquire(scope: Scope, ticket: Ticket | None = None) -> None:
    """Take or re-enter every name of the scope, all or none. ``LockBusy``, ``LeaseLost`` or ``BackendUnavailable``.

    With a ``ticket``, take on what was handed over with it, which is never re-entered; ``NotHeld`` if that is gone.
    """
    spec = scope.spec
    port = spec.store.port(scope.runtime)
    scope.waits_until = now() + spec.wait if spec.wait else None
    try:
        for name in spec.names:
            scope.waited = 0.0
            if ticket is not None:
                await handover.take_on(scope, port, name, ticket)
            elif chain.find_enclosing(spec.store, name) is None or not await enter_again(scope, port, name):
                await _take(scope, port, name)
        if scope.has_waited and scope.acquired and len(scope.holds) > 1:
            # The first leases have aged while the others were awaited, and the store may have lost one of them, to a
            # failover or by force: the block begins only when it has confirmed all, each with a full lease.
            await watchdog.extend_holds(port, scope.acquired, None)
        scope.raise_if_lost()  # while the others were taken, or while the answer was on its way
        if spec.renew or spec.on_lost not in ("raise", "warn"):
            watchdog.register(scope)
        if integrations.installed.open_transactions:
            warn_once(scope)
        chain.enter(scope)
    except BaseException as error:
        try:
            await abort(scope, error)
        finally:  # also where that is interrupted
            if ticket is not None:
                await handover.end_transit(scope, ticket, error)
        tell_of_rejection(scope, error)
        raise


async def _take(scope: Scope, port: Port, name: str) -> None:
    """Take one name from the store, with a fresh claim."""
    spec = scope.spec
    token = new_token(spec.store.ident, limit=spec.limit)
    claim = Claim(name, token, spec.expire, scope.claimant(), spec.max_waiters, bool(scope.asked))
    refused: BaseException | None = None
    try:
        try:
            answer = await port.acquire(claim, spec.wait)
        except NotSent as error:
            refused = error
            raise
        except BackendUnavailable:
            answer = await port.acquire(claim, spec.wait)  # asked again, once: every verb may be sent twice
        if isinstance(answer, Busy) and spec.wait != 0 and not answer.final:
            answer = await _queue(scope, port, claim, answer)
        if isinstance(answer, Granted):
            hold = scope.add(claim, answer)
    except BaseException as error:
        if error is not refused:
            # The answer may be on its way, or we are in the queue: nothing of this claim may stay behind.
            await undo(error, scope, lambda port: cancel_quietly(scope, [claim], port))
        raise
    if isinstance(answer, Busy):
        raise busy_error(spec, name, answer)
    if events.listeners:
        if hold.waited:
            hold.tell("waited")
        hold.tell("acquired")


async def _queue(scope: Scope, port: Port, claim: Claim, answer: Busy) -> Granted | Busy:
    """Wait for our turn, while what is held already is kept. ``Busy``: it is done."""
    begun = now()
    scope.has_waited = True
    try:
        with watchdog.renewing(scope.holds) if scope.holds else nullcontext():  # most waits pass by the watchdog
            return await _wait(scope, port, claim, answer)
    finally:
        scope.waited = now() - begun


async def _wait(scope: Scope, port: Port, claim: Claim, answer: Busy) -> Granted | Busy:
    """Until it is ours. A store that stops answering meanwhile is asked again for one lease, then given up.

    ``LeaseLost`` if one of the locks that are held already is lost meanwhile.
    """
    unreachable_since: float | None = None
    while True:
        scope.raise_if_lost()
        left = scope.wait_left()
        if left is not None and left <= 0:
            # What we know is from before we slept: the lock may be free, for no message tells of a lease that ended.
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
        if isinstance(asked, Granted) or asked.final:
            return asked
        answer = asked
