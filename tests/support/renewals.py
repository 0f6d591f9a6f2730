"""What the watchdog does with a lease, now and not at a third of it: so no lease of a test has to be short for that."""

from __future__ import annotations

from distlock_web import Lease
from distlock_web.core.backend import drift
from distlock_web.core.runtime import now
from distlock_web.locks import watchdog
from distlock_web.locks.lease import scope_of

from .waiting import SOON, eventually


def look_now(lease: Lease) -> None:
    """Have the watchdog look at it."""
    holds = scope_of(lease).holds
    for store in {hold.store for hold in holds}:
        for dog in list(watchdog._watchdogs_of(store).values()):
            dog.check_now([item for item in list(dog._watched) if item.hold in holds])


def renewed_now(lease: Lease) -> None:
    """Have the watchdog renew it; ``TimeoutError`` if nobody does. A renewal that was on its way does not count."""
    begun, (hold, *_) = now(), scope_of(lease).holds

    def renewed() -> bool:
        look_now(lease)
        return hold.deadline >= begun + hold.claim.expire - drift(hold.claim.expire)

    eventually(renewed, f"{lease!r} is renewed", SOON)
