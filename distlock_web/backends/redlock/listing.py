"""What is held, as a majority of the nodes shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ...core.backend import LockInfo
from ..redis.listing import infos
from ..redis.scripts import NAMES
from .node import Node
from .quorum import Quorum
from .scripts import INSPECT

#: Names in one request: a server runs a script alone, so one must not be long.
LISTED, INSPECTED = 1000, 200


async def inspect(quorum: Quorum, names: Sequence[str] | None) -> list[LockInfo]:
    """The verb."""
    given: dict[str, list[LockInfo]] = {}
    silent = 0
    listed = await _names(quorum) if names is None else names
    for first in range(0, len(listed), INSPECTED):
        some = listed[first : first + INSPECTED]
        answered = quorum.answered(await quorum.ask(INSPECT, some, lambda _: ()))
        silent = max(silent, len(quorum.nodes) - len(answered))  # they may have it, too
        for question in answered:
            for line in infos(some, question.reply):
                given.setdefault(line.name, []).append(line)
    lines = [_merged(its, quorum.needed - silent) for its in given.values()]
    return sorted((line for line in lines if line is not None), key=lambda line: line.remaining)


async def _names(quorum: Quorum) -> list[str]:
    """What any node lists."""
    found: set[bytes] = set()
    ends: dict[Node, tuple[str, int]] = dict.fromkeys(quorum.nodes, ("", 0))  # where each goes on
    while ends:
        questions = await quorum.ask(NAMES, [], lambda node: (*ends[node], LISTED), nodes=list(ends))
        if len(questions) == len(quorum.nodes):
            quorum.answered(questions)
        for question in questions:
            part = question.reply[1:] if question.answered else []
            found.update(part[::2])
            before, known = ends.pop(question.node)
            if len(part) == 2 * LISTED:
                last = part[-1].decode()
                ends[question.node] = last, part[1::2].count(part[-1]) + (known if last == before else 0)
    return sorted(name.decode("utf-8", "replace") for name in found)


def _merged(given: Sequence[LockInfo], needed: int) -> LockInfo | None:
    """The lock as at least ``needed`` nodes show it. None: what they have is left over, or on its way to be one."""
    holder, votes = Counter(line.holder for line in given).most_common(1)[0]
    if votes < needed:
        return None
    lines = [line for line in given if line.holder == holder]
    fence = max(sorted(line.fence or 0 for line in lines), key=[line.fence for line in lines].count)
    shown = next(line for line in lines if line.fence == fence)
    longest = sorted((line.remaining for line in lines), reverse=True)
    return replace(
        shown,
        since=min(line.since for line in lines),
        remaining=longest[min(max(needed, 1), len(longest)) - 1],
        waiters=sum(line.waiters for line in given),  # each waits at one of them
        state=Counter(line.state for line in lines).most_common(1)[0][0],
    )
