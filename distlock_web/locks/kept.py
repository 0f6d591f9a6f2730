"""What stays of a block that has succeeded: the lock, for ``hold_at_least``, and what ``once`` leaves in the store.

``Scope.keep_for`` says for how many seconds, from the acquisition on, and ``Scope.record`` what is left. What a nested
block has entered is released by the block around: ``Scope.keep_taken`` notes it in the hold.
"""

from __future__ import annotations

from ..core.runtime import now
from .hold import Hold
from .scope import Scope


def leave_record(scope: Scope, record: str, seconds: float) -> None:
    """Its work is done, and not done again for so long."""
    scope.record, scope.keep_for = record, seconds


def leave_nothing(scope: Scope) -> None:
    """Its work is not done, or undone: nothing is recorded, and the lock is free at its release."""
    scope.record, scope.keep_for = None, 0.0


def leave_no_record(scope: Scope) -> None:
    """Of ``once``: its end leaves nothing, and the next call runs. ``hold_at_least`` of a plain lock stays."""
    if scope.record is not None:
        leave_nothing(scope)


def leaves_something(scope: Scope) -> bool:
    """Whether it matters if it succeeds."""
    return scope.keep_for > 0


def until(scope: Scope, hold: Hold) -> float:
    """By our clock: so long a success keeps it taken in all."""
    return hold.since + scope.keep_for


def at_release(scope: Scope, hold: Hold, success: bool) -> tuple[float, str | None]:
    """For how many seconds it stays taken when it is released now, and with which record."""
    last = hold.keep_until
    if success and scope.keep_for:
        last = max(last, until(scope, hold))
    cooldown = max(0.0, last - now())
    return cooldown, scope.record if success and cooldown else None
