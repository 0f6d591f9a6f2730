"""The listing: what INSPECT and NAMES are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ...core.backend import LockInfo
from .scripts import PackedKeys, pack_keys, queue_of

#: Names in one request for the listing: the server runs a script alone, so one must not be long.
BATCH = 200
NAMES_BATCH = 1000


def inspected(names: Sequence[str]) -> PackedKeys:
    """The keys of INSPECT."""
    return pack_keys(*(key for name in names for key in (name, queue_of(name))))


def infos(names: Sequence[str], lines: Sequence[list[Any]]) -> list[LockInfo]:
    """Those of these names that are held."""
    return [_info(name, line) for name, line in zip(names, lines, strict=True) if line[4] >= 0]


def _info(name: str, line: list[object]) -> LockInfo:
    fence, state, holder, since, remaining, waiters, first = cast(
        "tuple[bytes, bytes, bytes, bytes, int, int, bytes]", tuple(line)
    )
    return LockInfo(
        name,
        int(fence),
        holder.decode("utf-8", "replace"),
        int(since) / 1_000_000,
        remaining / 1000,
        waiters,
        state.decode(),
        float(first) / 1_000_000 if first else None,
    )


def ends(part: Sequence[bytes]) -> dict[str, float]:
    """Names and the ends of their leases (µs), of a part of what NAMES answers.

    Another program may have put in what is no name of ours: such a one is not held, and hides none that is.
    """
    return {name.decode("utf-8", "replace"): float(end) for name, end in zip(part[::2], part[1::2], strict=True)}


def moments(answer: Sequence[bytes]) -> list[tuple[float, str]]:
    """What DONE answers: when each was done (µs), and its name."""
    return [(moment, name) for name, moment in ends(answer).items()]


def newest(locks: Sequence[LockInfo], limit: int) -> list[LockInfo]:
    """Those that are done still, the newest in front."""
    return sorted((lock for lock in locks if lock.state == "done"), key=lambda lock: -lock.since)[:limit]
