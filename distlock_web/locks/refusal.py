"""A block that does not begin: what is said of it, to the caller and to those who listen."""

from __future__ import annotations

from ..core.backend import Busy
from ..core.errors import BackendUnavailable, ConfigurationError, LockBusy
from ..core.holder import HolderInfo
from ..core.runtime import TASKS
from . import events
from .log_fields import of_scope
from .scope import Scope, Spec


def claimant(scope: Scope) -> str:
    """Who asks, for people: what a store keeps beside the lock."""
    spec = scope.spec
    return HolderInfo.current(spec.function or spec.place, spec.expire, scope.runtime is TASKS)


def busy_error(spec: Spec, name: str, answer: Busy) -> LockBusy:
    """What to say of a lock that somebody else has: who, as far as the store tells, and how long it usually takes."""
    holder = HolderInfo.loads(answer.holder)
    who = holder.describe()
    since = "" if answer.held_for is None else f", for {answer.held_for:.1f} s"
    text = f"Somebody else holds the lock {name!r}{': ' if who else ''}{who}{since}."
    usual = spec.store.hold_times.usual(holder.function if who else spec.function, name)
    return LockBusy(
        text,
        name=name,
        retry_after=answer.remaining,
        holder=holder if who else None,
        usual=usual,
        held_for=answer.held_for,
    )


def tell_of_refusal(scope: Scope, error: BaseException) -> None:
    """The lock is busy, or the store has failed: tell who listens. Other errors are the caller's."""
    if isinstance(error, LockBusy | BackendUnavailable):
        error.log_fields = of_scope("busy" if isinstance(error, LockBusy) else "error", scope)
    if isinstance(error, LockBusy):
        if events.listeners:
            _tell_of_busy(scope, error)
    elif isinstance(error, BackendUnavailable | ConfigurationError):
        spec = scope.spec
        name = error.name or ", ".join(spec.names)
        events.failed("acquire", spec.store.alias, name, spec.template, error, claimant=claimant(scope))


def _tell_of_busy(scope: Scope, error: LockBusy) -> None:
    spec, waited, asking = scope.spec, scope.waited, claimant(scope)
    where = (spec.store.alias, error.name or ", ".join(spec.names), spec.template)
    if waited:
        events.publish("waited", *where, waited=waited, expire=spec.expire, claimant=asking)
    events.publish(
        "busy", *where, waited=waited, expire=spec.expire, claimant=asking, other=error.holder, held=error.held_for
    )


def tell_of_no_lock(scope: Scope, error: BackendUnavailable) -> None:
    """The block runs without its locks, for nobody answers who could give them."""
    if events.listeners:
        spec, asking = scope.spec, claimant(scope)
        for name in spec.names:
            events.publish("let_through", spec.store.alias, name, spec.template, detail=str(error), claimant=asking)
