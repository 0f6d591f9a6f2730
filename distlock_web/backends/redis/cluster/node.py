"""One node of a cluster: a server as the other backend has it, and its verbs for the locks of its slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, cast

from ....core.backend import Busy, Claim, Granted, LockInfo, Loss
from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import IDENT_DIGITS, THREADS
from .. import RedisBackend
from ..listing import infos
from ..port import _LOSSES, BATCH, NAMES_BATCH, RedisPort, ScriptRunner, _ends, _extends, _inspected
from ..scripts import (
    EXISTS,
    EXTEND,
    INDEXED,
    INSPECT,
    NAMES,
    Call,
    KeyCommand,
    PackedKeys,
    Script,
    lock_keys,
    one_key,
    pack_keys,
)
from ..transport.address import Address
from ..transport.errors import ErrorReply
from ..transport.pool import ConnectionPool
from ..transport.replicas import GivesLock
from .redirects import NodeAddress
from .slots import index_of, indexes_of, slot_of, tags

#: How many locks an index lists, and the first of them with the µs at which their leases end.
Listed: TypeAlias = tuple[int, list[tuple[str, float]]]

#: Commands in one write: the server answers others only between two of its reads.
PIPELINE = 1000


class BatchRunner(ScriptRunner, Protocol):
    """A ``ScriptRunner`` that also sends many calls in one write: ``ConnectionPool`` and ``LoopConnection``."""

    async def run_many(
        self,
        script: Script | KeyCommand,
        calls: Sequence[Call],
        timeout: float | None = None,
        confirm: GivesLock | None = None,
    ) -> list[Any]: ...


class NodePort(RedisPort):
    """The verbs at one node. Where a verb is about several locks, they are in one slot; each has another."""

    def asking(self) -> NodePort:
        """The same for a slot that is on its way to this node: each question says that it knows so."""
        twin = copy(self)  # what is remembered are the same objects
        twin._runner = _AskingRunner(self._runner)
        return twin

    async def rejoin(self, claim: Claim, position: int) -> Granted | Busy:
        """Wait here from now on, at the place that this claim had where it waited before."""
        listener = self._listener
        listener.expect(claim, self.runtime)
        if not listener.ready:
            try:
                await listener.listen(self.runtime)
            except BackendUnavailable:
                pass  # as in ``acquire``: it asks again by itself
        return await self._acquire(claim, listener.expect(claim, self.runtime), position)

    def leave(self, token: str) -> None:
        """Who has waited here waits at another node now: a message that is still on its way is no news."""
        self.stop_waiting(token)
        self._ambiguous.discard(token)

    # Several slots: an answer that is an error is given as one, for the others have theirs -----------------------

    async def extend_each(
        self, claims: Sequence[Sequence[Claim]], timeout: float | None
    ) -> list[list[Loss | None] | DistLockError]:
        if len(claims) == 1:
            return [await self.extend(claims[0], timeout)]
        calls = [self._extension(some) for some in claims]
        return [
            answer if isinstance(answer, DistLockError) else [_LOSSES[loss] for loss in answer]
            for answer in await self._each(EXTEND, calls, timeout, _extends if self._confirm else None)
        ]

    async def inspect_each(self, names: Sequence[Sequence[str]]) -> list[list[LockInfo] | DistLockError]:
        answers = await self._each(INSPECT, [(_inspected(some[:BATCH]), ()) for some in names])
        return [
            answer
            if isinstance(answer, DistLockError)
            else infos(some[:BATCH], answer) + await self.inspect(some[BATCH:])
            for some, answer in zip(names, answers, strict=True)
        ]

    async def indexed(self, slots: Sequence[int]) -> list[int]:
        """Those of these slots that have an index, so that there may be a lock in them. Or that are not here."""
        found: list[int] = []
        try:
            for first in range(0, len(slots), PIPELINE):
                found += await self._indexed(slots[first : first + PIPELINE])
        except DistLockError as error:
            if isinstance(error, BackendUnavailable) or not isinstance(error.__cause__, ErrorReply):
                raise
            # Redis before 7 has no script that looks at several slots.
            answers = await self._each(EXISTS, [(one_key(index_of(self._index, slot)), ()) for slot in slots])
            return [slot for slot, answer in zip(slots, answers, strict=True) if answer != 0]
        return found

    async def _indexed(self, slots: Sequence[int]) -> list[int]:
        every = tags()
        args = (indexes_of(self._index), *[every[slot] for slot in slots])
        return [slots[place] for place in await self._runner.run(INDEXED, pack_keys(), args)]

    async def names_each(self, slots: Sequence[int], limit: int | None) -> list[Listed | DistLockError]:
        first = NAMES_BATCH if limit is None else min(limit, NAMES_BATCH)
        calls = [(pack_keys(index_of(self._index, slot)), ("", 0, first)) for slot in slots]
        found: list[Listed | DistLockError] = []
        for slot, answer in zip(slots, await self._each(NAMES, calls), strict=True):
            if isinstance(answer, DistLockError):
                found.append(answer)
            elif answer[0] > first and first == NAMES_BATCH:  # there are more in this slot
                found.append(await self.names_in(slot, limit))
            else:
                found.append((answer[0], list(_ends(answer[1:]).items())))
        return found

    async def names_in(self, slot: int, limit: int | None) -> Listed:
        return await self._names(index_of(self._index, slot), limit)

    async def _each(
        self,
        script: Script | KeyCommand,
        calls: Sequence[Call],
        timeout: float | None = None,
        confirm: GivesLock | None = None,
    ) -> list[Any]:
        runner, answers = cast("BatchRunner", self._runner), list[Any]()
        for first in range(0, len(calls), PIPELINE):
            answers += await runner.run_many(script, calls[first : first + PIPELINE], timeout, confirm)
        return answers

    def _index_of(self, name: str) -> str:
        return index_of(self._index, slot_of(name))

    def _keys(self, name: str) -> PackedKeys:
        return _keys_of(name, self._index)

    def _acquire_keys(self, claim: Claim) -> PackedKeys:
        # With the line of this store: a key that came to be at the other end of a move would stop the move.
        return _keys_of(claim.name, self._index, claim.token[:IDENT_DIGITS])


@lru_cache(maxsize=4096)
def _keys_of(name: str, prefix: str, ident: str = "") -> PackedKeys:
    return lock_keys(name, index_of(prefix, slot_of(name)), ident)


class _AskingRunner:
    """For verbs on one lock or one slot: those on several begin at the node that has them, and are not redirected."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def run(self, script: Script, keys: PackedKeys, *args: Any, **options: Any) -> Any:
        return await self._runner.run(script, keys._replace(asking=True), *args, **options)


class ClusterNode(RedisBackend):
    """What there is of one node: connections, who waits at it, whether it answers."""

    _port_class = NodePort

    def __init__(self, at: NodeAddress, address: Address, cancel: Callable[[Claim, int], None]) -> None:
        self.at = at
        self._address = address
        self._cancel_anywhere = cancel
        self._index = address.prefix  # see index_of: there is one for each slot
        self._answer_timeout = float(address.kwargs["socket_timeout"])
        self._start()

    def _start(self) -> None:
        super()._start()
        # One thread renews the leases of all nodes: it does not wait for one that is known to hang.
        self._renewal_pool = ConnectionPool(self._address, self._outage, self._moved)
        self._renewal_port = self._port(self._renewal_pool, THREADS)

    @property
    def silent(self) -> bool:
        return self._outage.silent

    def sync_port(self) -> NodePort:
        return cast("NodePort", super().sync_port())

    def renewal_port(self) -> NodePort:
        return cast("NodePort", super().renewal_port())

    def async_port(self) -> NodePort:
        return cast("NodePort", super().async_port())

    def ask_again(self, concerned: Callable[[Claim], bool]) -> None:
        """Wake those who wait here for what is elsewhere by now."""
        self._listener.ask_again(concerned)

    def postpone(self, claim: Claim) -> None:
        """Cancel this claim when the node answers."""
        self._postpone(claim, self._answer_timeout)

    def retire(self, successor: ClusterNode) -> None:
        """It serves no slot any more: let go of its connections; what was put off until it answers is another's."""
        successor._outage.take_over(self._outage)
        self._moved()

    def _cancel(self, claim: Claim, fence: int = 0) -> None:
        self._cancel_anywhere(claim, fence)  # the slot may be another node's by then
