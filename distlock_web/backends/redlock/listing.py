"""One line of a listing, of what several nodes show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ...core.backend import LockInfo
from .node import Node


def merged(given: Sequence[tuple[Node, LockInfo]], lead: Node, needed: int) -> LockInfo | None:
    """The lock as ``needed`` nodes show it; or as its lead does, which is asked first and refuses everybody else.

    None: what the nodes have is left over, or on its way to be one.
    """
    holder, votes = Counter(line.holder for _, line in given).most_common(1)[0]
    if votes < needed:
        return next((line for node, line in given if node is lead), None)
    lines = [line for _, line in given if line.holder == holder]
    fence = max(sorted(line.fence or 0 for line in lines), key=[line.fence for line in lines].count)
    shown = next(line for line in lines if line.fence == fence)
    longest = sorted((line.remaining for line in lines), reverse=True)
    waiting = [line.waiting_since for _, line in given if line.waiting_since is not None]
    return replace(
        shown,
        since=min(line.since for line in lines),
        remaining=longest[min(max(needed, 1), len(longest)) - 1],
        waiters=max(line.waiters for _, line in given),
        state=Counter(line.state for line in lines).most_common(1)[0][0],
        waiting_since=min(waiting, default=None),
    )
