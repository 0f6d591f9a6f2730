"""Hand-over: a lock changes hands without being free in between; to a Celery task, to another process.

``detach`` makes the store exchange the owner's token for a proof of the string that it returns; ``attach``, given that
string, exchanges the proof for a token of its own. Both may be sent twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import partial

from . import watchdog
from .backend import Claim
from .block import Block
from .engine import give_back, names_of, twice, undo
from .errors import ConfigurationError, NotHeld
from .hold import Hold
from .holder import Holder
from .runtime import new_token


async def detach(block: Block, transit: float) -> str:
    """Exchange the owner of every name for a string that ``attach`` understands."""
    if not block.alive:
        raise NotHeld(f"The lease of {names_of(block)} is over.", name=names_of(block))
    if block.nested or any(hold.depth > 1 for hold in block.own):
        raise ConfigurationError(
            f"The lock {names_of(block)} is held by several blocks of this call chain: detach it from the outermost."
        )
    for hold in block.own:
        hold.raise_if_lost()
    spec, secret = block.spec, new_token()
    ticket = [spec.store.alias, [[hold.name, hold.fence] for hold in block.own], spec.expire, spec.renew, secret]
    text = base64.urlsafe_b64encode(json.dumps(ticket).encode()).decode()
    if not block.own:
        raise NotHeld("There is no lock to hand over: this call was let through without one.")
    if not block.begin_end():
        raise NotHeld(f"The lease of {names_of(block)} is over.", name=names_of(block))
    try:
        await block.runtime.finish(_let_go(block, proof(text), transit))
    except BaseException:
        # Nobody has the string: nothing may stay behind that only the string can take on.
        await block.runtime.finish(_take_back(block, proof(text)))
        raise
    return text


async def _let_go(block: Block, transit_token: str, transit: float) -> None:
    if block.stop_renewing is not None:
        block.stop_renewing()
    port = block.spec.store.port(block.runtime)
    for hold in block.own:
        if not hold.begin_release():
            raise hold.lost_error()
        loss = await twice(partial(port.detach, hold.claim, transit_token, transit))
        if loss is not None:
            hold.lose(loss)
            raise hold.lost_error()
        hold.released()


async def _take_back(block: Block, transit_token: str) -> None:
    port = block.spec.store.port(block.runtime)
    for hold in block.own:
        for token in (transit_token, hold.claim.token):
            await undo(port, hold.claim._replace(token=token))


async def attach(block: Block, text: str) -> None:
    """Take on the names of the block from a transit string: all of them, or ``NotHeld``."""
    spec = block.spec
    port = spec.store.port(block.runtime)
    try:
        for name in spec.names:
            claim = Claim(name, new_token(), spec.expire, Holder.current(spec.what, spec.expire))
            try:
                granted = await twice(partial(port.attach, claim, proof(text)))
            except BaseException:
                await block.runtime.finish(undo(port, claim))
                raise
            if granted is None:
                raise NotHeld(
                    f"The lock {name!r} cannot be taken on: the string was used before, came too late or was altered.",
                    name=name,
                )
            block.own.append(Hold(spec.store, claim, granted))
        watchdog.tend(block)
    except BaseException:
        block.begin_end()
        await block.runtime.finish(give_back(block, port))
        raise
    block.enter()


def proof(text: str) -> str:
    """What the store keeps of a transit string. A digest of all of it, so that an altered string proves nothing."""
    return hashlib.sha256(text.encode()).hexdigest()
