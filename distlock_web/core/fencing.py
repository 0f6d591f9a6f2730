"""Fences on their way to where they are checked: another process's database, another service's view."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ConfigurationError, StaleFence
from .lease import Lease

#: The header in which a service tells another under which fence it asks.
HEADER = "Lock-Fence"


def fence_of(lease: Lease | int) -> int:
    """The number to check against. ``LeaseLost`` for a lease that is gone, ``ConfigurationError`` if it has none."""
    if isinstance(lease, int) and not isinstance(lease, bool):
        return lease
    if not isinstance(lease, Lease):
        raise ConfigurationError(f"A fence comes from a lease or is a number, not {lease!r}.")
    lease.raise_if_lost()
    if lease.fence is None:
        raise ConfigurationError(f"The lock {lease.name!r} gives no fence: its store has none, or it was not taken.")
    return lease.fence


def fence_headers(lease: Lease) -> dict[str, str]:
    """Headers of a request to a service that checks the fence: ``requests.post(url, headers=fence_headers(lease))``."""
    return {HEADER: str(fence_of(lease))}


def read_fence(headers: Mapping[str, str]) -> int:
    """The fence that a request came with, for ``guarded_get``. Raises ``StaleFence`` if there is none, or no number."""
    text = headers.get(HEADER, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise StaleFence(f"The request has no {HEADER}, or it is no number: nobody knows under which lock it was sent.")
    return int(text)
