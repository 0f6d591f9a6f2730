"""A block that does not begin, or begins without its locks: what its caller is told, and who listens."""

from __future__ import annotations

from ..core.backend import Busy
from ..core.errors import BackendUnavailable, ConfigurationError, LockBusy
from ..core.request_id import HolderInfo
from . import events
from .scope import Scope, Spec


def busy_error(spec: Spec, name: str, answer: Busy, message: str = "") -> LockBusy:
    """What to say of a lock that another caller has: who, as far as the store tells, and how long it usually takes."""
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


def tell_of_rejection(scope: Scope, error: BaseException) -> None:
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
    """The block runs without its locks, for the store does not answer."""
    if events.listeners:
        spec, claimant = scope.spec, scope.claimant()
        for name in spec.names:
            events.publish("let_through", spec.store.alias, name, spec.template, detail=str(error), claimant=claimant)
