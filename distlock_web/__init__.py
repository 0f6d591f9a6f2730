"""Distributed locks for Django and Flask: one line on a view, right under load, honest when things break."""

from .core.decorator import distributed_lockable
from .core.errors import (
    BackendUnavailable,
    ConfigurationError,
    DistLockError,
    LeaseLost,
    LockBusy,
    NotHeld,
    OpenTransactionWarning,
    StaleFence,
)
from .core.fencing import fence_headers, read_fence
from .core.keys import escape_key
from .core.lease import Lease, current_lease
from .core.lock import aattach, attach, lock
from .core.registry import configure
from .core.request_id import current_request_id

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "ConfigurationError",
    "DistLockError",
    "Lease",
    "LeaseLost",
    "LockBusy",
    "NotHeld",
    "OpenTransactionWarning",
    "StaleFence",
    "aattach",
    "attach",
    "configure",
    "current_lease",
    "current_request_id",
    "distributed_lockable",
    "escape_key",
    "fence_headers",
    "lock",
    "read_fence",
]
