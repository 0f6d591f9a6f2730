"""The algorithm: acquire, re-enter, wait. Written once, as coroutines, for threads and for asyncio.

It awaits nothing but a store's port (``core/backend.py``), its runtime (``core/runtime.py``) and, to re-enter, the gate
of a hold. The outcomes:

    verb      answer of the port        what happens
    -------   -----------------------   -----------------------------------------------------------------------------
    acquire   Granted                   a hold is added to the scope
              Busy, and wait is 0       LockBusy
              Busy, and full            LockBusy: as many wait as ``max_waiters`` lets
              Busy, and there is time   in the queue: wait
              Busy, with a record       LockBusy with the record, at once: it is done, and nobody is in its queue
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

from collections.abc import Callable
from functools import partial

from ..core import integrations
from ..core.backend import SHARED, Busy, Claim, Granted, Port, at_once, retry_once
from ..core.errors import BackendUnavailable, ConfigurationError, LockBusy, NotHeld, NotSent
from ..core.request_id import HolderInfo
from ..core.runtime import new_token, now
from . import events, watchdog
from .ending import abort, cancel_quietly, undo
from .hold import Hold
from .reentry import chain
from .scope import Scope, Spec
from .transfer import Ticket

#: Seconds between two questions to a store that does not answer while we wait for a lock.
UNREACHABLE_RECHECK_SECONDS = 0.25
#: Seconds to pause after a question that was refused sooner than that.
REFUSED_PAUSE = 0.05
#: For how long a store that does not answer is to remember, in seconds, that a transit is over: no ticket says when it
#: ends.
LONGEST_TRANSIT = 3600.0


async def acquire(scope: Scope, ticket: Ticket | None = None) -> None:
    """Take or re-enter every name of the scope, all or none. ``LockBusy``, ``LeaseLost`` or ``BackendUnavailable``.

    With a ``ticket``, take on what was handed over with it, which is never re-entered; ``NotHeld`` if that is gone.
    """
    spec = scope.spec
    port = spec.store.port(scope.runtime)
    until = now() + spec.wait if spec.wait else None  # over all names
    try:
        for name in spec.names:
            scope.waited = 0.0
            if ticket is not None:
                await _take_on(scope, port, name, ticket)
            elif chain.find_enclosing(spec.store, name) is None or not await _reenter(scope, port, name, until):
                await _take(scope, port, name, until)
        if scope.has_waited and scope.acquired and len(scope.holds) > 1:
            # The first leases have aged while the others were awaited, and the store may have lost one of them, to a
            # failover or by force: the block begins only when it has confirmed all, each with a full lease.
            await watchdog.extend_holds(port, scope.acquired, None)
        scope.raise_if_lost()  # while the others were taken, or while the answer was on its way
        if spec.renew or spec.on_lost not in ("raise", "warn"):
            watchdog.register(scope)
        if integrations.installed.open_transactions:
            scope.warn_once()
        chain.enter(scope)
    except BaseException as error:
        await abort(scope, error)
        # Some of its locks were ours until now: nobody can take on all of them with the ticket. Where not even the
        # first was to be had, another use of the ticket may be taking them on.
        if ticket is not None and scope.acquired and len(spec.names) > 1:
            await undo(error, scope, partial(_end_transit, scope, ticket))
        _tell_of_rejection(scope, error)
        raise


async def _take(scope: Scope, port: Port, name: str, until: float | None) -> None:
    """Take one name from the store, with a fresh claim."""
    spec = scope.spec
    token = new_token(spec.store.ident)
    if spec.limit > 1:
        token = token.limited(spec.limit)
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
            answer = await _queue(scope, port, claim, answer, until)
        if isinstance(answer, Granted):
            hold = scope.add(claim, answer)
    except BaseException as error:
        if error is not refused:
            # The answer may be on its way, or we are in the queue: nothing of this claim may stay behind.
            await undo(error, scope, lambda port: cancel_quietly(scope, claim, port))
        raise
    if isinstance(answer, Busy):
        raise _busy_error(spec, name, answer)
    if events.listeners:
        if hold.waited:
            hold.tell("waited")
        hold.tell("acquired")


async def _take_on(scope: Scope, port: Port, name: str, ticket: Ticket) -> None:
    """Take one name from whoever has handed it over."""
    spec = scope.spec
    claim = Claim(name, new_token(spec.store.ident), spec.expire, scope.claimant())
    try:
        granted = await retry_once(port.attach, claim, ticket.proof)
        # Another fence is another acquisition than the one that was handed over: a failover has forgotten that one.
        if granted is None or granted.fence != ticket.fences[name]:
            raise NotHeld(
                f"The lock {name!r} cannot be attached: the ticket was used before, came too late or was altered.",
                name=name,
            )
        hold = scope.add(claim, granted)
    except BaseException as error:
        await undo(error, scope, lambda port: cancel_quietly(scope, claim, port))
        raise
    if ticket.keep:
        hold.keep_until = hold.since + ticket.keep
    if events.listeners:
        hold.tell("acquired", "attached")


async def _end_transit(scope: Scope, ticket: Ticket, port: Port) -> None:
    """Free the locks that are still in transit, instead of at its end."""
    taken_on = {hold.name for hold in scope.acquired}
    for name in scope.spec.names:
        if name not in taken_on:
            await cancel_quietly(scope, Claim(name, ticket.proof, LONGEST_TRANSIT), port)


async def _queue(scope: Scope, port: Port, claim: Claim, answer: Busy, until: float | None) -> Granted | Busy:
    """Wait for our turn, while what is held already is kept. ``Busy``: it is done."""
    begun = now()
    scope.has_waited = True
    try:
        with watchdog.keep_alive(scope.holds):
            return await _wait(scope, port, claim, answer, until)
    finally:
        scope.waited = now() - begun


def _left(scope: Scope, until: float | None) -> float | None:
    """Seconds that the caller wants to wait still; None: for ever."""
    return scope.spec.wait if until is None else max(0.0, until - now())


async def _wait(scope: Scope, port: Port, claim: Claim, answer: Busy, until: float | None) -> Granted | Busy:
    """Until it is ours. A store that stops answering meanwhile is asked again for one lease, then given up.

    ``LeaseLost`` if one of the locks that are held already is lost meanwhile.
    """
    unreachable_since: float | None = None
    while True:
        scope.raise_if_lost()
        left = _left(scope, until)
        if left is not None and left <= 0:
            # What we know is from before we slept: the lock may be free, for nobody tells of a lease that ended.
            last = await retry_once(port.acquire, claim, 0.0)
            if isinstance(last, Granted):
                return last
            raise _busy_error(scope.spec, claim.name, last)
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


_STILL_INSIDE = (
    " This call chain took it in an earlier lease, which was lost and never released, so it cannot enter it again: "
    "leave that lease's block, or call its release() (which raises LeaseLost), and then take the lock anew."
)


async def _reenter(scope: Scope, port: Port, name: str, until: float | None) -> bool:
    """Enter a lock that the call chain holds already: no round trip, unless a longer lease is asked for."""
    spec = scope.spec
    while (found := chain.find_enclosing(spec.store, name, _passes_by(scope))) is not None:
        outer, hold = found
        if outer.gone is None and hold.check():
            _check_limit(spec, hold)
            gate = outer.gate(hold)
            if not chain.is_inside(outer):  # a lease, and somebody has entered it elsewhere: the gate is his
                continue
            turn = scope.line_up(gate)
            admission = gate.try_enter(turn)
            if admission == "busy" and spec.wait != 0:
                scope.has_waited = True
                with watchdog.keep_alive(scope.holds):
                    admission = await gate.enter(turn, scope.runtime, _left(scope, until), spec.max_waiters)
            if admission in ("busy", "full"):
                raise _busy_error(spec, name, _busy_with(hold)._replace(full=admission == "full"))
            if admission == "ours" and outer.gone is None and hold.check():
                scope.reenter(turn)
                await _give_time(port, hold, spec.expire)
                return True
            turn.leave()
        loss = outer.gone or (None if hold.check() else hold.lost_error)
        if loss is not None and outer.alive:
            raise loss(_STILL_INSIDE)
        # The block around us has ended meanwhile, or is a lease that was entered elsewhere: it is not around us.
    return False


async def _give_time(port: Port, hold: Hold, expire: float) -> None:
    """About the lease that a nested block asks for: at least half of it, without a request where that is left."""
    if expire > hold.claim.expire:
        await watchdog.extend_holds(port, [hold], expire)
        hold.renew_to(expire)
    elif hold.remaining < expire / 2:
        try:
            await watchdog.extend_holds(port, [hold], expire)
        except BackendUnavailable:  # it is ours still, and the block had entered without a request a moment sooner
            hold.mark_unsure()


def _busy_with(hold: Hold) -> Busy:
    """What a store would say of a lock that this process holds."""
    left = hold.remaining
    return Busy(left, left, holder=hold.claim.holder, held_for=now() - hold.since)


def _passes_by(scope: Scope) -> Callable[[Scope, Hold], bool] | None:
    """What an ``acquire()`` passes by in its call chain: leases in no block, which only blocks enter. None: nothing.

    Who hands leases on, to threads or tasks, is none of those that work under them. So it is told that a lock is busy
    whose every place is its own leases', for it would ask the store in vain, or wait for itself.
    """
    if scope.in_block:
        return None
    spec, own, places = scope.spec, set[Hold](), SHARED

    def passes(outer: Scope, hold: Hold) -> bool:
        nonlocal places
        if outer.in_block:
            return False
        if outer.gone is None and hold.check():
            own.add(hold)
            limit = hold.claim.token.limit
            # One that was taken inside of a block has its turn in the block's own place.
            places = min(places, at_once(spec.limit, limit) if hold in outer.acquired or limit == SHARED else 1)
            # A worker may end it before the time is over; to wait for ever would be to wait for oneself, perhaps.
            if len(own) >= places and not spec.wait:
                raise _own_lease_error(spec, hold)
        return True

    return passes


def _own_lease_error(spec: Spec, hold: Hold) -> ConfigurationError | LockBusy:
    """What ``acquire()`` is told whose own call chain has a lease of the lock, which only blocks enter."""
    if spec.wait is None:
        return ConfigurationError(
            f"The lock {hold.name!r} is held by this call chain, by a lease: acquire() with wait=None would wait for "
            f"itself. Enter that lease by `with`, release it, or give a time to wait.",
            name=hold.name,
        )
    message = f"The lock {hold.name!r} is held by this call chain, by a lease: enter it by `with`, or release it."
    return _busy_error(spec, hold.name, _busy_with(hold), message)


def _check_limit(spec: Spec, hold: Hold) -> None:
    """``ConfigurationError`` for a block that would wait until its own call chain has gone."""
    limit = hold.claim.token.limit
    if at_once(spec.limit, limit) >= limit:
        return
    outer = "shared" if limit == SHARED else f"with limit={limit}"
    wants = {1: "to be alone", SHARED: "readers only"}.get(spec.limit, f"at most {spec.limit} holders")
    raise ConfigurationError(
        f"This call chain holds the lock {hold.name!r} {outer}, and a block inside it wants {wants}: it would wait "
        f"for itself for ever. Take the lock in the outer block as the inner block needs it."
    )


# A block that does not begin ----------------------------------------------------------------------------------------


def _busy_error(spec: Spec, name: str, answer: Busy, message: str = "") -> LockBusy:
    """What to say of a lock that somebody else has: who, as far as the store tells, and how long it usually takes."""
    holder = HolderInfo.loads(answer.holder)
    who = holder.describe()
    since = "" if answer.held_for is None else f", for {answer.held_for:.1f} s"
    full = f" Nobody else may wait (max_waiters={spec.max_waiters})." if answer.full else ""
    return LockBusy(
        message or f"Somebody else holds the lock {name!r}{': ' if who else ''}{who}{since}.{full}",
        name=name,
        retry_after=answer.remaining,
        holder=holder if who else None,
        usual=spec.store.hold_times.usual(holder.function if who else spec.function, name),
        held_for=answer.held_for,
        record=answer.record,
        limit=spec.limit,
        full=answer.full,
    )


def _tell_of_rejection(scope: Scope, error: BaseException) -> None:
    """The lock is busy, or the store has failed: tell who listens. Other errors are the caller's."""
    if isinstance(error, LockBusy | BackendUnavailable):
        error.log_fields = scope.log_fields("busy" if isinstance(error, LockBusy) else "error")
    if not events.listeners or not isinstance(error, LockBusy | BackendUnavailable | ConfigurationError):
        return
    spec, waited, claimant = scope.spec, scope.waited, scope.claimant()
    where = (spec.store.alias, error.name or ", ".join(spec.names), spec.template)
    if not isinstance(error, LockBusy):
        events.failed("acquire", *where, error, claimant=claimant)
        return
    if waited:
        events.publish("waited", *where, waited=waited, expire=spec.expire, claimant=claimant)
    if error.record is not None:  # it has its answer
        return
    events.publish(
        "busy", *where, waited=waited, expire=spec.expire, claimant=claimant, other=error.holder, held=error.held_for
    )


def tell_of_no_lock(scope: Scope, error: BackendUnavailable) -> None:
    """The block runs without its locks, for nobody answers who could give them."""
    if events.listeners:
        spec, claimant = scope.spec, scope.claimant()
        for name in spec.names:
            events.publish("let_through", spec.store.alias, name, spec.template, detail=str(error), claimant=claimant)
