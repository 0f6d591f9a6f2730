"""A lock changes hands without being free in between: to a Celery task, to another process.

``detach`` makes the store exchange the owner's token for a proof of the ticket that it returns; ``attach``, given that
ticket, exchanges the proof for a token of its own. Both may be sent twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass
from functools import partial

from ..core.backend import Claim, Granted, Port
from ..core.config import check_seconds
from ..core.errors import ConfigurationError, DistLockError, NotHeld
from ..core.runtime import Runtime
from . import engine
from .release import cancel_quietly, clean_up_after, retry_once
from .scope import Scope, names_of


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the next holder needs: where the locks are, their fences, how they were held, and a secret as proof."""

    text: str  #: as it travels
    store: str
    fences: dict[str, int | None]  #: by name
    expire: float
    renew: bool

    @classmethod
    def of(cls, scope: Scope) -> Ticket:
        """A new ticket over the locks that the scope has acquired."""
        spec, fences = scope.spec, {hold.name: hold.fence for hold in scope.acquired}
        fields = [spec.store.alias, list(fences.items()), spec.expire, spec.renew, secrets.token_hex(16)]
        text = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
        return cls(text, spec.store.alias, fences, spec.expire, spec.renew)

    @classmethod
    def loads(cls, text: str) -> Ticket:
        """Raises ``NotHeld`` for a text that is no ticket."""
        try:
            store, held, expire, renew, _ = json.loads(base64.urlsafe_b64decode(text.encode("ascii", "replace")))
            fences = {str(name): None if fence is None else int(fence) for name, fence in held}
            if not fences:
                raise ValueError("no names")
            return cls(text, str(store), fences, check_seconds(float(expire), "expire"), bool(renew))
        # An infinite fence, brackets a hundred thousand deep, a lease that is no time.
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, ConfigurationError):
            raise NotHeld("This is not a string that lease.detach() gave, or it was altered.") from None

    @property
    def proof(self) -> str:
        """What the store keeps of it. A digest of all of the text, so that an altered ticket proves nothing."""
        return hashlib.sha256(self.text.encode()).hexdigest()


async def detach(scope: Scope, transit: float, runtime: Runtime) -> str:
    """Exchange the owner of every name for a ticket that ``attach`` understands, within ``transit`` seconds."""
    scope.check_usable()
    if scope.reentered or any(hold.depth > 1 for hold in scope.acquired):
        raise ConfigurationError(
            f"The lock {names_of(scope)} is held by several blocks of this call chain: detach it from the outermost."
        )
    if not scope.spec.store.backend.capabilities.transfer:
        raise ConfigurationError(f"The store {scope.spec.store.alias!r} cannot hand a lock over: no detach, no attach.")
    if not scope.acquired:
        raise NotHeld("There is no lock to hand over: this call was let through without one.")
    ticket = Ticket.of(scope)
    try:
        if engine.close(scope, runtime):
            await runtime.shield(_hand_over(scope, ticket.proof, transit))
            return ticket.text
    except BaseException as error:
        # Nobody has the ticket: nothing may stay behind that only the ticket can take on.
        engine.close(scope, runtime)  # a signal's exception may have come before
        await clean_up_after(error, scope, partial(_take_back, scope, ticket.proof, transit))
        raise
    raise scope.over_error()


async def _hand_over(scope: Scope, proof: str, transit: float) -> None:
    scope.stop_watching()
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


async def _take_back(scope: Scope, proof: str, transit: float, port: Port) -> None:
    scope.stop_watching()
    for hold in scope.acquired:
        claim = hold.claim_to_the_end
        for token in (proof, claim.token):
            await cancel_quietly(scope, port, claim._replace(token=token, expire=max(claim.expire, transit)))
        if hold.begin_release():
            hold.released("")


async def attach(scope: Scope, ticket: Ticket) -> None:
    """Take on the names of the scope, which are the ticket's: all of them, or ``NotHeld``."""

    async def ask(port: Port, claim: Claim) -> Granted:
        granted = await retry_once(port.attach, claim, ticket.proof)
        # Another fence is another acquisition than the one that was handed over: a failover has forgotten that one.
        if granted is None or granted.fence != ticket.fences[claim.name]:
            raise NotHeld(
                f"The lock {claim.name!r} cannot be taken on: the string was used before, came too late or was "
                f"altered.",
                name=claim.name,
            )
        return granted

    await engine.attach(scope, ask)
