"""The listing: what people see of the locks at one server, and what they may end by force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, cast

from ...core.backend import LockInfo, Port, WaiterInfo
from .scripts import DONE, INSPECT, NAMES, REVOKE, WAITERS
from .scripts.calls import Keys, PackedKeys, pack_keys, queue_of
from .transport.exchange import Exchange

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


class ListingVerbs(Port):
    """Of the locks at one server: what its port has beside the verbs of those who want a lock."""

    def __init__(self, exchange: Exchange, keys: Keys) -> None:
        self._exchange = exchange
        self._keys = keys

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        if names is None:
            _, names = await self.names()
        held: list[LockInfo] = []
        for first in range(0, len(names), BATCH):
            some = names[first : first + BATCH]
            held += infos(some, await self._exchange.run(INSPECT, inspected(some)))
        return held

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        total, found = await self.names_in(self._keys.index_of(""), limit)
        return total, [name for name, _ in found]

    async def names_in(self, index: str, limit: int | None) -> tuple[int, list[tuple[str, float]]]:
        """How many this index lists, and the first of them, with the µs at which their leases end."""
        total, found = 0, dict[str, float]()  # one that is renewed meanwhile comes twice
        end, known = "", 0
        while limit is None or len(found) < limit:
            total, *part = await self._exchange.run(NAMES, pack_keys(index), (end, known, NAMES_BATCH))
            found.update(ends(part))
            if len(part) < 2 * NAMES_BATCH:
                break
            last = part[-1].decode()
            known = part[1::2].count(part[-1]) + (known if last == end else 0)
            end = last
        return total, list(found.items())[:limit]

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo]:
        answer = await self._exchange.run(WAITERS, pack_keys(name, queue_of(name)), (limit,))
        found = sorted(zip(map(float, answer[1::2]), answer[::2], strict=True))
        return [WaiterInfo(holder.decode("utf-8", "replace"), place / 1_000_000) for place, holder in found[:limit]]

    async def done(self, limit: int) -> list[LockInfo]:
        found = await self.done_in(self._keys.done_of(""), 2 * limit)
        return newest(await self.inspect([name for _, name in found]), limit)

    async def done_in(self, index: str, limit: int) -> list[tuple[float, str]]:
        """What this index lists, the newest in front, with the µs at which it was done. Some of it may have ended."""
        return moments(await self._exchange.run(DONE, pack_keys(index), (limit,)))

    async def revoke(self, name: str, fence: int) -> bool:
        return bool(await self._exchange.run(REVOKE, self._keys.of(name), (fence, 0)))

    async def forget(self, name: str, fence: int) -> bool:
        return bool(await self._exchange.run(REVOKE, self._keys.of(name), (fence, 1)))
