"""A lock changes hands without being free in between: to a Celery task, to another process.

``detach`` makes the store exchange the owner's token for a proof of the ticket that it returns; ``take_on``, given that
ticket, exchanges the proof for a token of its own. Both may be sent twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.backend import Claim, Port, retry_once
from ..core.errors import ConfigurationError, DistLockError, NotHeld
from ..core.formats import refusal
from ..core.registry import registry
from ..core.runtime import Runtime, Token, new_token, now
from ..core.setting import Duration, check_flag, check_seconds
from . import events
from .completion import cancel_quietly, undo
from .reentry import chain
from .scope import Scope, Spec, names_of

#: For how long a store that does not answer is to remember, in seconds, that a transit is over: no ticket says when it
#: ends.
LONGEST_TRANSIT = 3600.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the next holder needs: where the locks are, their fences, how they were held, and a secret as proof."""

    text: str  #: as it travels
    store: str
    fences: dict[str, int | None]  #: by name
    expire: float
    renew: bool
    prefix: str  #: what the names begin with
    renew_for: float | None  #: what is left of it
    hold_at_least: float  #: what is left of it, for a success
    keep: float  #: what is left of that of nested blocks that have succeeded, whatever comes

    @classmethod
    def of(cls, scope: Scope) -> Ticket:
        """A new ticket over the locks that the scope has acquired."""
        spec, fences = scope.spec, {hold.name: hold.fence for hold in scope.acquired}
        moment, since = now(), min(hold.since for hold in scope.acquired)
        # Times that are left, not ends: clocks of two machines are never compared. What a ticket is on its way for does
        # not count.
        renew_for = None if spec.renew_for is None else max(0.0, since + spec.renew_for - moment)
        hold_at_least = max(0.0, since + scope.keep_for - moment)
        keep = max(0.0, max(hold.keep_until for hold in scope.acquired) - moment)
        held = list(fences.items())
        how = spec.expire, spec.renew, spec.prefix
        # The last field was a secret alone when there were no times beside it, and it was not read.
        last = {"secret": secrets.token_hex(16), "times": (renew_for, hold_at_least, keep)}
        text = base64.urlsafe_b64encode(json.dumps([spec.store.alias, held, *how, last]).encode()).decode()
        return cls(text, spec.store.alias, fences, *how, renew_for, hold_at_least, keep)

    @classmethod
    def loads(cls, text: str) -> Ticket:
        """Raises ``NotHeld`` for a text that is no ticket, ``ConfigurationError`` for one of a newer format."""
        try:
            fields = json.loads(base64.urlsafe_b64decode(text.encode()))
            last = fields[-1] if isinstance(fields[-1], dict) else {}  # of before it is a text
            newer = last.get("format")
            if not isinstance(newer, int):
                return cls(text, *_fields(*fields), *_times(*last.get("times", (None, 0, 0))))
        # An infinite fence, brackets a hundred thousand deep, a lease that is no time.
        except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, ConfigurationError):
            raise NotHeld("This is not a ticket from lease.detach(), or it was altered.") from None
        raise refusal("A ticket from lease.detach()", newer)

    @property
    def proof(self) -> Token:
        """What the store keeps of it. A digest of all of the text, so that an altered ticket proves nothing."""
        return Token(hashlib.sha256(self.text.encode()).hexdigest())


def _fields(
    store: object, held: Iterable[tuple[object, Any]], expire: Any, renew: object, prefix: object, _: object
) -> tuple[str, dict[str, int | None], float, bool, str]:
    fences = {str(name): None if fence is None else int(fence) for name, fence in held}
    if not fences:
        raise ValueError
    for text in (str(store), str(prefix), *fences):
        text.encode()  # ValueError: half of a character, which no store takes
    return str(store), fences, check_seconds(float(expire), "expire"), bool(renew), str(prefix)


def _times(renew_for: Any, hold_at_least: Any, keep: Any) -> tuple[float | None, float, float]:
    if renew_for is not None:
        renew_for = check_seconds(float(renew_for), "renew_for", zero=True)
    left, kept = (check_seconds(float(given), "hold_at_least", zero=True) for given in (hold_at_least, keep))
    return renew_for, left, kept


# Given up -----------------------------------------------------------------------------------------------------------


async def detach(scope: Scope, transit: float, runtime: Runtime, *, nested: bool = False) -> str:
    """Exchange the owner of every name for a ticket that ``attach`` understands, within ``transit`` seconds.

    ``nested``: also where blocks inside of it go on; these are without their lock then.
    """
    scope.check_usable()
    _check_transferable(scope, nested)
    ticket = Ticket.of(scope)
    try:
        if scope.close(runtime):
            await runtime.shield(_hand_over(scope, ticket.proof, transit))
            chain.leave(scope)
            return ticket.text
    except BaseException as error:
        # No process has the ticket: nothing may stay behind that only the ticket can take on. So a block that goes on
        # has no lock from here on, and its end says so.
        scope.close(runtime)  # a signal's exception may have come before
        scope.without(scope.acquired[0], "unreachable")
        if scope.in_block:
            scope.reopen()
        else:
            chain.leave(scope)
        await undo(error, scope, partial(_take_back, scope, ticket.proof, transit))
        raise
    raise scope.over_error()


def _check_transferable(scope: Scope, nested: bool) -> None:
    """``ConfigurationError`` for a lock that cannot be handed over, ``NotHeld`` where there is none."""
    if scope.reentered or (not nested and any(hold.depth > 1 for hold in scope.acquired)):
        raise ConfigurationError(
            f"The lock {names_of(scope)} is held by several blocks of this call chain: detach it from the outermost."
        )
    if not scope.spec.store.backend.capabilities.transfer:
        raise ConfigurationError(f"The store {scope.spec.store.alias!r} cannot hand a lock over (detach, attach).")
    if scope.spec.limit > 1:
        raise ConfigurationError(
            f"The lock {names_of(scope)} has several holders (limit, shared): its lease cannot be handed over. Let "
            f"the receiver take its own place."
        )
    if not scope.acquired:
        raise NotHeld("There is no lock to hand over: this call was let through without one.")
    if scope.asked:
        raise ConfigurationError(
            f"{names_of(scope)} is a lease of once, which cannot be handed over: its record is written where it "
            f"began. Start the work elsewhere with its own lock or once."
        )


async def _hand_over(scope: Scope, proof: Token, transit: float) -> None:
    scope.let_go()
    port = scope.spec.store.port(scope.runtime)
    for hold in scope.acquired:
        if not hold.begin_release():
            raise hold.lost_error()
        try:
            loss = await retry_once(port.detach, hold.claim, proof, transit)
        except DistLockError as error:
            hold.tell_of_failure("transfer", error)
            raise
        if loss is not None:
            hold.lose(loss)
            raise hold.lost_error()
        hold.released("detached")


async def _take_back(scope: Scope, proof: Token, transit: float, port: Port) -> None:
    scope.let_go()
    claims = [
        claim._replace(token=token, expire=max(claim.expire, transit))
        for claim in (hold.claim_to_the_end for hold in scope.acquired)
        for token in (proof, claim.token)
    ]
    try:
        await cancel_quietly(scope, claims, port)
    finally:
        for hold in scope.acquired:
            if hold.begin_release():
                hold.released("")


# Taken on -----------------------------------------------------------------------------------------------------------


def receiver(ticket: Ticket, expire: Duration | None, renew: bool | None, runtime: Runtime, site: str) -> Scope:
    """Who takes on what was handed over with this ticket: it holds nothing yet. ``site``: the line, for people."""
    store = registry().store(ticket.store)
    shortest = store.backend.capabilities.min_expire
    spec = Spec(
        store=store,
        names=tuple(ticket.fences),
        expire=ticket.expire if expire is None else check_seconds(expire, "expire", minimum=shortest),
        wait=0.0,
        renew=ticket.renew if renew is None else check_flag(renew, "renew"),
        renew_for=ticket.renew_for,
        hold_at_least=ticket.hold_at_least,
        template=site,
        prefix=ticket.prefix,
    )
    return Scope(spec, runtime, in_block=False)


async def take_on(scope: Scope, port: Port, name: str, ticket: Ticket) -> None:
    """Take one name from the caller that has handed it over."""
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
        await undo(error, scope, partial(cancel_quietly, scope, [claim]))
        raise
    if ticket.keep:
        hold.keep_until = hold.since + ticket.keep
    if events.listeners:
        hold.tell("acquired", "attached")


async def end_transit(scope: Scope, ticket: Ticket, error: BaseException) -> None:
    """They are not taken on; the caller raises ``error`` then. Frees those in transit, if some of them were taken on.

    Then no one can take on all of them with the ticket. Where not even the first was to be had, another use of the
    ticket may be taking them on.
    """
    if taken_on := {hold.name for hold in scope.acquired}:
        in_transit = [name for name in scope.spec.names if name not in taken_on]
        claims = [Claim(name, ticket.proof, LONGEST_TRANSIT) for name in in_transit]
        await undo(error, scope, partial(cancel_quietly, scope, claims))
