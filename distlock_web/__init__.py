"""Distributed locks for Django, Flask and FastAPI."""

from .core.errors import (
    BackendUnavailable,
    ConfigurationError,
    DistLockError,
    KeyReused,
    KeyUnavailable,
    LeaseLost,
    LockBusy,
    NotHeld,
    OpenTransactionWarning,
    StaleFence,
)
from .core.keys import escape_key
from .core.registry import configure
from .core.request_id import HolderInfo, RequestIDFilter, current_request_id
from .locks import events
from .locks.attach import aattach, attach
from .locks.decorator import distributed_lockable
from .locks.fencing import fence_headers, read_fence
from .locks.leader import Candidate, leader
from .locks.lease import Lease, current_lease
from .locks.lock import Lock, lock
from .locks.lost import Lost
from .locks.once import once
from .locks.options import LockOptions
from .locks.request_context import request_scope
from .ops.held_locks import LockRow, aheld_locks, held_locks

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "Candidate",
    "ConfigurationError",
    "DistLockError",
    "HolderInfo",
    "KeyReused",
    "KeyUnavailable",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockBusy",
    "LockOptions",
    "LockRow",
    "Lost",
    "NotHeld",
    "OpenTransactionWarning",
    "RequestIDFilter",
    "StaleFence",
    "aattach",
    "aheld_locks",
    "attach",
    "configure",
    "current_lease",
    "current_request_id",
    "distributed_lockable",
    "escape_key",
    "events",
    "fence_headers",
    "held_locks",
    "leader",
    "lock",
    "once",
    "read_fence",
    "request_scope",
]
