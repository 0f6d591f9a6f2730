"""The listing: what INSPECT and NAMES are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
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
    """Those of these names that are held: a line for each holder."""
    return [info for name, line in zip(names, lines, strict=True) for info in _infos(name, line)]


def _infos(name: str, line: list[Any]) -> list[LockInfo]:
    if not isinstance(line[4], list):
        return [_info(name, line)] if line[4] >= 0 else []
    *columns, waiters, first, limits = line
    holders, limit = len(limits), min(map(int, limits), default=1)
    oldest = sorted(zip(*columns, strict=True), key=lambda one: int(one[3]))
    queue = chain([(waiters, first)], repeat((0, b"")))
    return [_info(name, [*one, *waiting], holders, limit) for one, waiting in zip(oldest, queue, strict=False)]


def _info(name: str, line: list[Any], holders: int = 1, limit: int = 1) -> LockInfo:
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
        holders,
        limit,
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
