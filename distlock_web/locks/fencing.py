"""Fences on their way to where they are checked: another process's database, another service's view."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.errors import ConfigurationError, StaleFence
from .lease import Lease, scope_of

#: The header in which a service tells another under which fence it asks.
HEADER = "Lock-Fence"

MAX_FENCE = 2**63 - 1  # a database's BIGINT


def fence_of(lease: Lease | int, key: object = None) -> int:
    """The number to check against: a lease's ``fence``, or that of its lock on ``key``; or a number from elsewhere.

    Raises ``LeaseLost`` for a lease that is gone, ``ConfigurationError`` if there is no fence or more than one, and for
    a lease among several holders: the greater fence of one would refuse the others, who hold the lock, too.
    """
    if isinstance(lease, int) and not isinstance(lease, bool):
        if key is not None:
            raise ConfigurationError("key= names a lock of a lease, but a number was given in place of the lease.")
        return lease
    if not isinstance(lease, Lease):
        raise ConfigurationError(f"A fence comes from a lease or is a number, but {lease!r} was given.")
    spec = scope_of(lease).spec
    if spec.limit > 1:
        raise ConfigurationError(
            f"The lock {', '.join(spec.names)} has several holders (limit= or shared=): the fence of one would refuse "
            f"the others. Fence rows under a lock without these options."
        )
    lease.raise_if_lost()
    fence = lease.fence if key is None else lease.fence_for(key)
    if fence is None:
        why = f"its store, {spec.store.alias!r}, has no fences" if lease.acquired else "it was not acquired"
        raise ConfigurationError(f"The lock {', '.join(spec.names)} gives no fence: {why}.")
    return fence


def fence_of_read(lease: Lease | int, read_under: int | None, row: str) -> int:
    """The number to check against for an object: of a lease over several locks the one that it was read under."""
    if not isinstance(lease, Lease) or len(lease.names) < 2:
        return fence_of(lease)
    lease.raise_if_lost()
    if read_under is None or read_under not in lease.fences.values():
        raise StaleFence(f"{row} was not read with fenced_get under one of the locks {lease.name}.")
    return read_under


def fence_headers(lease: Lease | int) -> dict[str, str]:
    """Headers of a request to a service that checks the fence: ``requests.post(url, headers=fence_headers(lease))``."""
    return {HEADER: str(fence_of(lease))}


def read_fence(headers: Mapping[str, str]) -> int:
    """The fence that a request came with, for ``fenced_get``: ``read_fence(request.headers)``.

    Raises ``StaleFence`` if there is none, or if it is not a number. Every sender of requests can send any number: a
    fence keeps order among services that trust each other, and is not a permission.
    """
    text = headers.get(HEADER, "")
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_FENCE:
        return int(text)
    raise StaleFence(f"The request has no {HEADER} with a number: it is unknown which lock it was sent under.")


def late(row: str, fence: int, found: int | None) -> StaleFence:
    """What to say of a row that does not bear the fence. ``found``: the one it bears; None: there is no such row."""
    if found is None:
        return StaleFence(f"{row} is gone: somebody deleted it while the holder with the fence {fence} worked on it.")
    if found > fence:
        return StaleFence(f"{row}: a newer holder with the fence {found} works on it; this one has {fence}.")
    return StaleFence(
        f"{row} has the fence {found}, not {fence}: it was not read with fenced_get under this lock, so its data may "
        f"be old."
    )


def unstamped(table: str, fence: int) -> StaleFence:
    """What to say where no row bears the fence."""
    return StaleFence(
        f"No matching row of {table} has the fence {fence}: a newer holder has stamped it, or it was not read with "
        f"fenced_get under this lock."
    )
