"""``attach`` for a lock that was handed over: the entry point. ``handover.py`` does the work."""

from __future__ import annotations

import sys

from ..core.errors import DistLockError
from ..core.runtime import TASKS, Runtime, blocking_runtime, drive
from ..core.setting import Duration
from . import ending, engine
from .call_site import call_site
from .handover import Ticket, receiver
from .lease import Lease


def attach(ticket: str, *, expire: Duration | None = None, renew: bool | None = None) -> Lease:
    """Take over a lock with the ticket that ``lease.detach()`` returned, in this process or another.

    ``with attach(ticket) as lease:`` continues under the same lock and the same fence, and releases the lock at its
    end. Raises ``NotHeld`` if the ticket was used before, came after its transit time, or was altered.
    """
    runtime = blocking_runtime("`await aattach(...)`")
    return drive(_attach(ticket, expire, renew, runtime, call_site(sys._getframe(1))))


async def aattach(ticket: str, *, expire: Duration | None = None, renew: bool | None = None) -> Lease:
    """The asyncio twin of :func:`attach`."""
    return await _attach(ticket, expire, renew, TASKS, call_site(sys._getframe(1)))


async def _attach(text: str, expire: Duration | None, renew: bool | None, runtime: Runtime, site: str) -> Lease:
    ticket = Ticket.loads(text)
    scope = receiver(ticket, expire, renew, runtime, site)
    try:
        await engine.acquire(scope, ticket)
        return Lease(scope)
    except DistLockError:
        raise
    except BaseException as error:  # as in Lock._acquire_now
        await ending.abort(scope, error)
        raise
