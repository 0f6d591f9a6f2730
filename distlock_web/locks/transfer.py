"""A lock changes hands without being free in between: to a Celery task, to another process.

``detach`` (in ``ending.py``) makes the store exchange the owner's token for a proof of the ticket that it returns;
``attach`` (in ``engine.py``), given that ticket, exchanges the proof for a token of its own. Both may be sent twice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core.errors import ConfigurationError, NotHeld
from ..core.formats import refusal
from ..core.runtime import Token, now
from ..core.setting import check_seconds
from .scope import Scope


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
        hold_at_least = max(0.0, since + spec.hold_at_least - moment)
        keep = max(0.0, max(hold.keep_until for hold in scope.acquired) - moment)
        held = list(fences.items())
        how = spec.expire, spec.renew, spec.prefix
        # The last field was a secret alone when there were no times beside it, and nobody has read it.
        last = {"secret": secrets.token_hex(16), "times": (renew_for, hold_at_least, keep)}
        text = base64.urlsafe_b64encode(json.dumps([spec.store.alias, held, *how, last]).encode()).decode()
        return cls(text, spec.store.alias, fences, *how, renew_for, hold_at_least, keep)

    @classmethod
    def loads(cls, text: str) -> Ticket:
        """Raises ``NotHeld`` for a text that is no ticket, ``ConfigurationError`` for one of a newer format."""
        try:
            fields = json.loads(base64.urlsafe_b64decode(text.encode("ascii", "replace")))
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
        raise ValueError("no names")
    return str(store), fences, check_seconds(float(expire), "expire"), bool(renew), str(prefix)


def _times(renew_for: Any, hold_at_least: Any, keep: Any) -> tuple[float | None, float, float]:
    if renew_for is not None:
        renew_for = check_seconds(float(renew_for), "renew_for", zero=True)
    left, kept = (check_seconds(float(given), "hold_at_least", zero=True) for given in (hold_at_least, keep))
    return renew_for, left, kept
