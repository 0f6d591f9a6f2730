"""What INSPECT answers, as lines of the listing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ...core.backend import LockInfo


def infos(names: Sequence[str], lines: Sequence[list[Any]]) -> list[LockInfo]:
    """Those of these names that are held."""
    return [_info(name, line) for name, line in zip(names, lines, strict=True) if line[4] >= 0]


def _info(name: str, line: list[object]) -> LockInfo:
    fence, state, holder, since, remaining, waiters, first, previous = cast(
        "tuple[bytes, bytes, bytes, bytes, int, int, bytes, bytes]", tuple(line)
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
        previous.decode("utf-8", "replace"),
    )
