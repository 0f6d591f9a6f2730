"""One node of a cluster, and what it is asked about locks of several of its slots at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ....core.backend import Claim, LockInfo, Loss
from ....core.errors import DistLockError
from ..listing import BATCH, NAMES_BATCH, ends, infos, inspected, moments
from ..port import RedisPort, extends, extension, losses
from ..scripts import DONE, EXTEND, INDEXED, INSPECT, NAMES, Call, Script, pack_keys
from ..transport.exchange import Exchange
from ..transport.replicas import GivesLock
from ..transport.server import Server
from .redirects import NodeAddress
from .slots import SlotKeys, tags

#: How many locks an index lists, and the first of them with the µs at which their leases end.
Listed: TypeAlias = tuple[int, list[tuple[str, float]]]

#: Commands in one write: the server answers others only between two of its reads.
PIPELINE = 1000


class Node(NamedTuple):
    at: NodeAddress
    server: Server


class NodePort(NamedTuple):
    """Verbs at one node where each lock is in another slot: an answer that is an error is given as one."""

    port: RedisPort  #: for locks of one slot
    exchange: Exchange
    keys: SlotKeys

    async def extend(
        self, claims: Sequence[Sequence[Claim]], timeout: float | None
    ) -> list[list[Loss | None] | DistLockError]:
        confirm = extends if self.port.confirms else None
        answers = await self._each(EXTEND, [extension(some, self.keys) for some in claims], timeout, confirm)
        return [answer if isinstance(answer, DistLockError) else losses(answer) for answer in answers]

    async def inspect(self, names: Sequence[Sequence[str]]) -> list[list[LockInfo] | DistLockError]:
        answers = await self._each(INSPECT, [(inspected(some[:BATCH]), ()) for some in names])
        return [
            answer
            if isinstance(answer, DistLockError)
            else infos(some[:BATCH], answer) + await self.port.inspect(some[BATCH:])
            for some, answer in zip(names, answers, strict=True)
        ]

    async def indexed(self, slots: Sequence[int], indexes: str) -> list[int]:
        """Those of these slots that have an index, whose key begins so. Or that are not here."""
        every, found = tags(), list[int]()
        for first in range(0, len(slots), PIPELINE):
            some = slots[first : first + PIPELINE]
            args = (indexes, *[every[slot] for slot in some])
            found += [some[place] for place in await self.exchange.run(INDEXED, pack_keys(), args)]
        return found

    async def names(self, slots: Sequence[int], limit: int | None) -> list[Listed | DistLockError]:
        first = NAMES_BATCH if limit is None else min(limit, NAMES_BATCH)
        calls = [(pack_keys(self.keys.index_in(slot)), ("", 0, first)) for slot in slots]
        found: list[Listed | DistLockError] = []
        for slot, answer in zip(slots, await self._each(NAMES, calls), strict=True):
            if isinstance(answer, DistLockError):
                found.append(answer)
            elif answer[0] > first and first == NAMES_BATCH:  # there are more in this slot
                found.append(await self.port.names_in(self.keys.index_in(slot), limit))
            else:
                found.append((answer[0], list(ends(answer[1:]).items())))
        return found

    async def done(self, slots: Sequence[int], limit: int) -> list[list[tuple[float, str]] | DistLockError]:
        calls = [(pack_keys(self.keys.done_in(slot)), (limit,)) for slot in slots]
        answers = await self._each(DONE, calls)
        return [answer if isinstance(answer, DistLockError) else moments(answer) for answer in answers]

    async def _each(
        self, script: Script, calls: Sequence[Call], timeout: float | None = None, confirm: GivesLock | None = None
    ) -> list[Any]:
        answers: list[Any] = []
        for first in range(0, len(calls), PIPELINE):
            answers += await self.exchange.run_many(script, calls[first : first + PIPELINE], timeout, confirm)
        return answers
