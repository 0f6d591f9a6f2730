"""Distributed locks for Django and Flask: one line on a view, right under load, honest when things break."""

from .core.errors import (
    BackendUnavailable,
    ConfigurationError,
    DistLockError,
    KeyUnavailable,
    LeaseLost,
    LockBusy,
    NotHeld,
    OpenTransactionWarning,
    StaleFence,
)
from .core.keys import escape_key
from .core.registry import configure
from .core.request_id import current_request_id
from .locks.decorator import distributed_lockable
from .locks.fencing import fence_headers, read_fence
from .locks.lease import Lease, current_lease
from .locks.lock import aattach, attach, lock

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "ConfigurationError",
    "DistLockError",
    "KeyUnavailable",
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
