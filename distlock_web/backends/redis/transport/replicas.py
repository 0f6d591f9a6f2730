"""``min_replicas``: a lock counts only when so many replicas have it.

WAIT is sent behind the script, in the same write, on the same connection: when they have all that was written until
then, or its time is over, it answers how many have.
"""

from __future__ import annotations

from typing import Any

from ..scripts.calls import command
from .address import RedisAddress
from .errors import ErrorReply, TooFewReplicas, as_error


def wait_command(address: RedisAddress, timeout: float | None) -> bytes:
    """The WAIT, packed. ``timeout`` bounds the request that it belongs to."""
    seconds = address.replica_timeout if timeout is None else min(address.replica_timeout, timeout / 2)
    return command("WAIT", address.min_replicas, max(1, round(seconds * 1000)))


def check_confirmed(answer: Any, address: RedisAddress) -> None:
    """``TooFewReplicas`` if the answer to the WAIT says so."""
    if isinstance(answer, ErrorReply):
        raise as_error(answer, address)
    if answer < address.min_replicas:
        raise TooFewReplicas(
            f"{address.name}: {answer} of the {address.min_replicas} replicas asked for by min_replicas confirmed the "
            f"lock in time (OPTIONS: replica_timeout, {address.replica_timeout:g} s), so it does not count."
        )
