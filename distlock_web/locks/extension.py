"""Extending leases, several in one request, and what the answers make of each."""

from __future__ import annotations

from contextlib import suppress

from ..core.backend import Claim, Loss, Port
from ..core.errors import BackendUnavailable, DistLockError
from ..core.runtime import now
from . import events
from .hold import Hold
from .release import retry_once

#: Leases in one request: the server runs a script alone, so one must not be long, and Lua's stack is bounded.
MAX_BATCH_LEASES = 500


async def extend_holds(port: Port, holds: list[Hold], expire: float | None) -> None:
    """Give each at least ``expire`` seconds again, None: as many as it was taken for. ``LeaseLost`` if one is gone.

    ``BackendUnavailable`` if there was no answer for some of them; those that were answered for are extended, or lost.
    Very many go in several requests, and none is sent after one that has failed.
    """
    for first in range(0, len(holds), MAX_BATCH_LEASES):
        await _extend_batch(port, holds[first : first + MAX_BATCH_LEASES], expire)


async def _extend_batch(port: Port, holds: list[Hold], expire: float | None) -> None:
    claims = [hold.claim if expire is None else hold.claim._replace(expire=expire) for hold in holds]
    since = now()
    for hold, claim in zip(holds, claims, strict=True):
        hold.asks(since, claim.expire)
    try:
        losses = await _ask_to_extend(port, claims)
    except DistLockError as error:
        for hold in holds:
            hold.tell_of_failure("extend", error)
        raise
    outages = []
    for hold, claim, loss in zip(holds, claims, losses, strict=True):
        if loss is None:
            hold.renewed(since, claim.expire)
        elif isinstance(loss, BackendUnavailable):
            outages.append((hold, loss))
        elif hold.check():  # else it is being given back: nobody has lost anything
            hold.lose(loss)
    for hold, outage in outages:
        hold.tell_of_failure("extend", outage)
    for hold in holds:
        hold.raise_if_lost()
    if outages:
        raise outages[0][1]
    if events.listeners:
        for hold in holds:
            hold.tell("renewed")


async def _ask_to_extend(port: Port, claims: list[Claim]) -> list[Loss | BackendUnavailable | None]:
    """An answer for each claim. Where there was none it is asked once more: all, or the claims of a silent server."""
    losses = list(await retry_once(port.extend, claims))
    unanswered = [place for place, loss in enumerate(losses) if isinstance(loss, BackendUnavailable)]
    if unanswered:
        with suppress(BackendUnavailable):  # then the first answer stands
            for place, loss in zip(unanswered, await port.extend([claims[i] for i in unanswered]), strict=True):
                losses[place] = loss
    return losses
