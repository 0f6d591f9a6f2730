"""A lock that the call chain holds is entered again, without a request; one ``with`` at a time enters a lease."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from ...core.backend import SHARED, Busy, Port
from ...core.errors import BackendUnavailable, ConfigurationError, LockBusy
from ...core.runtime import now
from .. import watchdog
from ..hold import Hold
from ..refused import busy_error
from ..scope import Scope, Spec, names_of
from . import chain
from .gate import Turn, gate_of, line_up
from .sharing import check_limit, places_beside

_STILL_INSIDE = (
    " This call chain took it in an earlier lease, which was lost and never released, so it cannot enter it again: "
    "leave that lease's block, or call its release() (which raises LeaseLost), and then take the lock anew."
)


async def enter_again(scope: Scope, port: Port, name: str) -> bool:
    """Enter a lock that the call chain holds already: no round trip, unless a longer lease is asked for."""
    spec = scope.spec
    while (found := chain.find_enclosing(spec.store, name, _passes_by(scope))) is not None:
        outer, hold = found
        if outer.why_lost is None and hold.check():
            check_limit(spec.limit, hold)
            gate = gate_of(outer, hold)
            if not chain.is_inside(outer):  # a lease that was entered elsewhere: the gate is there
                continue
            turn = line_up(scope, gate)
            admission = gate.try_enter(turn)
            if admission == "busy" and spec.wait != 0:
                scope.has_waited = True
                with watchdog.renewing(scope.holds):
                    admission = await gate.enter(turn, scope.runtime, scope.wait_left(), spec.max_waiters)
            if admission in ("busy", "full"):
                raise busy_error(spec, name, _busy_with(hold)._replace(full=admission == "full"))
            if admission == "ours" and outer.why_lost is None and hold.check():
                _reenter(scope, turn)
                await _give_time(port, hold, spec.expire)
                return True
            turn.leave()
        loss = outer.why_lost or (None if hold.check() else hold.lost_error)
        if loss is not None and outer.alive:
            raise loss(_STILL_INSIDE)
        # The block around us has ended meanwhile, or is a lease that was entered elsewhere: it is not around us.
    return False


def _reenter(scope: Scope, turn: Turn) -> None:
    """It is its turn in a hold of a block around it."""
    scope.reentered.append(turn)
    scope.holds.append(turn.hold)


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
        if outer.why_lost is None and hold.check():
            own.add(hold)
            places = min(places, places_beside(spec.limit, hold, taken_here=hold in outer.acquired))
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
    return busy_error(spec, hold.name, _busy_with(hold), message)


class Entry(weakref.ref[Scope]):
    """A reference to a scope that is no other's: where a ``with`` has entered its lease."""

    __slots__ = ()


def begin_block(scope: Scope) -> None:
    """A ``with lease:`` enters the lease here: it belongs to the running code alone.

    ``ConfigurationError`` if it is in a block already, or if blocks of the call chain that took it are inside.
    """
    closed = list[str]()
    free = not scope.in_block
    for hold in scope.holds:
        if free := free and gate_of(scope, hold).close_if_empty():
            closed.append(hold.name)
    if not free or scope.in_block:  # asked again: the gates may be of a block that has begun just now
        for name in closed:
            scope.gates.pop(name, None)
        raise ConfigurationError(
            f"The lease of {names_of(scope)} is entered already, by a block that has not ended: one `with` at a "
            f"time enters a lease. Let that block end, or use a lock(...) of its own here."
        )
    # Marked, then the gates are thrown away: who finds a new one sees the mark.
    scope.entry, scope.in_block = Entry(scope), True
    scope.gates = {}
