"""A lock with several holders (``limit``, ``shared``): what a call chain may want that is one of them.

That others may hold it as well is said by the claim's token; the stores count (``core/backend.py``: ``at_once``).
"""

from __future__ import annotations

from ...core.backend import SHARED, at_once
from ...core.errors import ConfigurationError
from ..hold import Hold


def is_shared(hold: Hold) -> bool:
    """Whether there are only others inside that let in any number: readers."""
    return hold.claim.token.limit == SHARED


def places_beside(wanted: int, hold: Hold, *, taken_here: bool) -> int:
    """How many may have the lock at once: who lets in as many as are ``wanted``, and a lease of its own call chain."""
    # One that was taken inside of a block has its turn in the block's own place.
    return at_once(wanted, hold.claim.token.limit) if taken_here or is_shared(hold) else 1


def check_limit(wanted: int, hold: Hold) -> None:
    """``ConfigurationError`` for a block inside of this hold that would wait until its own call chain has gone."""
    limit = hold.claim.token.limit
    if at_once(wanted, limit) >= limit:
        return
    outer = "shared" if is_shared(hold) else f"with limit={limit}"
    wants = {1: "to be alone", SHARED: "readers only"}.get(wanted, f"at most {wanted} holders")
    raise ConfigurationError(
        f"This call chain holds the lock {hold.name!r} {outer}, and a block inside it wants {wants}: it would wait "
        f"for itself for ever. Take the lock in the outer block as the inner block needs it."
    )
