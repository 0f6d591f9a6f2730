"""Hand-over: a lock changes hands without being free in between; to a Celery task, to another process.

``detach`` makes the store exchange the owner's token for a proof of the string that it returns; ``attach``, given that
string, exchanges the proof for a token of its own. Both may be sent retry_once.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import partial

from ..core.backend import Claim
from ..core.errors import ConfigurationError, NotHeld
from ..core.holder import HolderInfo
from ..core.runtime import new_token
from . import watchdog
from .engine import names_of, release_all, retry_once, undo
from .hold import Hold
from .scope import Scope


async def detach(scope: Scope, transit: float) -> str:
    """Exchange the owner of every name for a string that ``attach`` understands."""
    if not scope.alive:
        raise NotHeld(f"The lease of {names_of(scope)} is over.", name=names_of(scope))
    if scope.nested or any(hold.depth > 1 for hold in scope.own):
        raise ConfigurationError(
            f"The lock {names_of(scope)} is held by several blocks of this call chain: detach it from the outermost."
        )
    for hold in scope.own:
        hold.raise_if_lost()
    spec, secret = scope.spec, new_token()
    ticket = [spec.store.alias, [[hold.name, hold.fence] for hold in scope.own], spec.expire, spec.renew, secret]
    text = base64.urlsafe_b64encode(json.dumps(ticket).encode()).decode()
    if not scope.own:
        raise NotHeld("There is no lock to hand over: this call was let through without one.")
    if not scope.close_once():
        raise NotHeld(f"The lease of {names_of(scope)} is over.", name=names_of(scope))
    try:
        await scope.runtime.shield(_let_go(scope, proof(text), transit))
    except BaseException:
        # Nobody has the string: nothing may stay behind that only the string can take on.
        await scope.runtime.shield(_take_back(scope, proof(text)))
        raise
    return text


async def _let_go(scope: Scope, transit_token: str, transit: float) -> None:
    if scope.stop_renewing is not None:
        scope.stop_renewing()
    port = scope.spec.store.port(scope.runtime)
    for hold in scope.own:
        if not hold.begin_release():
            raise hold.lost_error()
        loss = await retry_once(partial(port.detach, hold.claim, transit_token, transit))
        if loss is not None:
            hold.lose(loss)
            raise hold.lost_error()
        hold.released()


async def _take_back(scope: Scope, transit_token: str) -> None:
    port = scope.spec.store.port(scope.runtime)
    for hold in scope.own:
        for token in (transit_token, hold.claim.token):
            await undo(port, hold.claim._replace(token=token))


async def attach(scope: Scope, text: str) -> None:
    """Take on the names of the scope from a transit string: all of them, or ``NotHeld``."""
    spec = scope.spec
    port = spec.store.port(scope.runtime)
    try:
        for name in spec.names:
            claim = Claim(name, new_token(), spec.expire, HolderInfo.current(spec.what, spec.expire))
            try:
                granted = await retry_once(partial(port.attach, claim, proof(text)))
            except BaseException:
                await scope.runtime.shield(undo(port, claim))
                raise
            if granted is None:
                raise NotHeld(
                    f"The lock {name!r} cannot be taken on: the string was used before, came too late or was altered.",
                    name=name,
                )
            scope.own.append(Hold(spec.store, claim, granted))
        watchdog.register(scope)
    except BaseException:
        scope.close_once()
        await scope.runtime.shield(release_all(scope, port))
        raise
    scope.enter()


def proof(text: str) -> str:
    """What the store keeps of a transit string. A digest of all of it, so that an altered string proves nothing."""
    return hashlib.sha256(text.encode()).hexdigest()
