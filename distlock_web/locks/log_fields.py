"""The fields of a log record (``extra=``), for programs that read logs."""

from __future__ import annotations

from ..core.holder import HolderInfo
from .events import log_fields
from .hold import Hold
from .scope import Scope


def of_scope(event: str, scope: Scope, **known: object) -> dict[str, object]:
    """For a line about all locks of a block."""
    spec = scope.spec
    known["function"] = spec.function or spec.place
    return log_fields(event, spec.store.alias, ", ".join(spec.names), spec.template or spec.place, **known)


def of_hold(event: str, hold: Hold, **known: object) -> dict[str, object]:
    """For a line about one lock, with the id of the request that holds it: the watchdog runs in none."""
    caller = HolderInfo.loads(hold.claim.holder)
    known |= {"request_id": caller.request_id, "function": caller.function}
    return log_fields(event, hold.store.alias, hold.name, hold.template_or_function, fence=hold.fence, **known)
