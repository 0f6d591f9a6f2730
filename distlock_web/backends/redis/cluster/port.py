"""The verbs over a whole cluster: one lock is asked for at its node, several at all their nodes, in one write to each.

A node that answers MOVED, ASK or TRYAGAIN has done nothing, so that to ask again is no second copy of a request. A
script may also come upon a key at the other end of a move after it has written: each may be sent again (law 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import methodcaller
from typing import Any, TypeVar

from ....core.backend import Busy, Claim, Granted, LockInfo, Loss, Port, WaiterInfo, retry_once
from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import THREADS, Runtime, now
from ..listing import BATCH, NAMES_BATCH, ends, infos, inspected, moments, newest
from ..port import RedisPort, extension, losses
from ..scripts import DONE, EXTEND, INDEXED, INSPECT, NAMES
from ..scripts.calls import Call, Script, pack_keys
from ..transport.exchange import Exchange, Reply
from ..transport.pipeline import Pipeline
from ..transport.server import Server
from .redirects import Moved, redirect_of
from .route import FOLLOW_TOGETHER, FOLLOWED, Route, SlotMoving
from .routes import ClusterNode, Routes
from .slots import SlotKeys, slot_of, tags

T = TypeVar("T")

#: Commands in one write: the server answers others only between two of its reads.
PIPELINE = 1000


class ClusterPort(Port):
    def __init__(
        self, routes: Routes, runtime: Runtime, exchange_of: Callable[[Server], Exchange], keys: SlotKeys
    ) -> None:
        self.runtime = runtime
        self._routes = routes
        self._exchange_of = exchange_of  #: of callers of one kind
        self._keys = keys

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        route = self._route(claim)
        answer = await route.send(lambda port: port.acquire(claim, wait))
        self._note(claim, answer if wait != 0 else None, route.node)
        return answer

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        """Sleep at the node in whose queue this is, whosever the slot is meanwhile; then ask where the lock is."""
        joined = self._routes.waiting.get(claim.token)
        route = self._route(claim, joined)
        slept = joined is None

        async def ask(port: RedisPort) -> Granted | Busy:
            nonlocal slept
            if slept:
                return await port.acquire(claim, None, busy.memo)
            slept = True
            return await port.wait(claim, busy, seconds)

        answer = await route.send(ask)
        self._note(claim, answer, route.node)
        return answer

    def _note(self, claim: Claim, answer: Granted | Busy | None, node: ClusterNode) -> None:
        if isinstance(answer, Busy) and not answer.final:
            self._routes.waiting[claim.token] = node
        else:
            self._routes.waiting.pop(claim.token, None)

    async def cancel(self, claim: Claim) -> None:
        try:
            await self._route(claim).send(lambda port: port.cancel(claim))
        except BackendUnavailable:
            self._routes.postpone(claim)
        finally:
            node = self._routes.waiting.pop(claim.token, None)
            if node is not None:  # also where no node serves the slot now: what it is handed there is given back
                node.server.listener.gave_up(claim.token)

    async def cancel_now(self, claim: Claim, fence: int = 0) -> None:
        """The same for what was postponed: it is tried again where this raises."""
        await self._route(claim).send(lambda port: port.cancel_now(claim, fence=fence))
        self._routes.waiting.pop(claim.token, None)

    async def release(self, claim: Claim, cooldown: float = 0.0, record: str | None = None) -> Loss | None:
        try:
            return await self._route(claim).send(lambda port: port.release(claim, cooldown, record))
        except SlotMoving:
            if not cooldown:
                self._routes.postpone(claim)  # as the node's own port does where the node does not answer
            raise

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        return await self._route(claim).send(lambda port: port.detach(claim, transit, seconds))

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        return await self._route(claim).send(lambda port: port.attach(claim, transit))

    async def revoke(self, name: str, fence: int) -> bool:
        return await self._route_to(slot_of(name)).send(lambda port: port.revoke(name, fence))

    async def forget(self, name: str, fence: int) -> bool:
        return await self._route_to(slot_of(name)).send(lambda port: port.forget(name, fence))

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo]:
        return await self._route_to(slot_of(name)).send(lambda port: port.waiters(name, limit))

    def _port_of(self, node: ClusterNode) -> RedisPort:
        return RedisPort(node.server, self._exchange_of(node.server), self.runtime, self._keys)

    def _route(self, claim: Claim, start: ClusterNode | None = None) -> Route:
        return Route(self._routes, self.runtime, self._port_of, slot_of(claim.name), claim, start)

    def _route_to(self, slot: int, until: float | None = None) -> Route:
        return Route(self._routes, self.runtime, self._port_of, slot, until=until)

    # Several locks -----------------------------------------------------------------------------------------------

    async def extend(self, claims: Sequence[Claim], timeout: float | None = None) -> list[Loss | DistLockError | None]:
        by_slot = _by_slot(claims, lambda claim: claim.name)
        calls = {slot: extension(some, self._keys) for slot, some in by_slot.items()}
        answers = await self._of_slots(EXTEND, calls, timeout)
        if all(isinstance(answer, DistLockError) for answer in answers.values()):
            _all_or_raise(answers)
        in_turn: dict[int, Iterator[Loss | DistLockError | None]] = {
            slot: repeat(answer) if isinstance(answer, DistLockError) else iter(losses(answer))
            for slot, answer in answers.items()
        }
        return [next(in_turn[slot_of(claim.name)]) for claim in claims]

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        if names is None:
            _, names = await self.names()
        by_slot = _by_slot(names, str)
        calls = {slot: (inspected(some[:BATCH]), ()) for slot, some in by_slot.items()}
        held: list[LockInfo] = []
        for slot, answer in _all_or_raise(await self._of_slots(INSPECT, calls)).items():
            held += infos(by_slot[slot][:BATCH], answer)
            if rest := by_slot[slot][BATCH:]:
                held += await self._route_to(slot).send(methodcaller("inspect", rest))
        return held

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        first = NAMES_BATCH if limit is None else min(limit, NAMES_BATCH)
        indexes = {slot: self._keys.index_in(slot) for slot in await self._indexed(self._keys.indexes)}
        calls = {slot: (pack_keys(index), ("", 0, first)) for slot, index in indexes.items()}
        total, listed = 0, list[tuple[float, str]]()
        for slot, (number, *part) in _all_or_raise(await self._of_slots(NAMES, calls)).items():
            found = ends(part).items()
            if number > first == NAMES_BATCH:  # there are more in this slot
                number, found = await self._route_to(slot).send(methodcaller("names_in", indexes[slot], limit))
            total += number
            listed += [(end, name) for name, end in found]
        return total, [name for _, name in sorted(listed)][:limit]

    async def done(self, limit: int) -> list[LockInfo]:
        slots = await self._indexed(self._keys.done)
        calls = {slot: (pack_keys(self._keys.done_in(slot)), (2 * limit,)) for slot in slots}
        answers = _all_or_raise(await self._of_slots(DONE, calls)).values()
        listed = sorted((each for answer in answers for each in moments(answer)), reverse=True)
        return newest(await self.inspect([name for _, name in listed[: 2 * limit]]), limit)

    async def _indexed(self, indexes: str) -> list[int]:
        """The slots that have an index whose key begins so. Or that are not where they were."""
        masters, every = await self._routes.masters(self.runtime), tags()

        async def ask(node: ClusterNode) -> list[int]:
            slots, found = masters[node], list[int]()
            for first in range(0, len(slots), PIPELINE):
                some = slots[first : first + PIPELINE]
                args = (indexes, *[every[slot] for slot in some])
                answer = await retry_once(self._exchange_of(node.server).run, INDEXED, pack_keys(), args)
                found += [some[place] for place in answer]
            return found

        return [slot for some in await self._together(ask, masters) for slot in some]

    async def _of_slots(
        self, script: Script, calls: Mapping[int, Call], timeout: float | None = None
    ) -> dict[int, Reply | DistLockError]:
        """What this script answers to the call for each slot: in one write to each node.

        A node that does not answer, or refuses us, fails its own slots only. ``timeout``: another caller waits.
        """
        until = None if timeout is None else now() + timeout
        by_node: dict[ClusterNode, list[int]] = {}
        found: dict[int, Reply | DistLockError] = {}
        for slot in calls:
            try:
                by_node.setdefault(await self._routes.owner(slot, self.runtime), []).append(slot)
            except DistLockError as error:  # a slot that no node serves
                found[slot] = error

        def left() -> float | None:
            return None if until is None else max(0.05, until - now())

        async def run(node: ClusterNode) -> list[Reply | DistLockError]:
            answers, slots = list[Any](), by_node[node]
            send: Any = Pipeline.over(self._exchange_of(node.server)).run_many
            if script is not EXTEND:  # a list: each node may have ended a connection that was idle
                send = partial(retry_once, send)
            try:
                for first in range(0, len(slots), PIPELINE):
                    some = [calls[slot] for slot in slots[first : first + PIPELINE]]
                    answers += await send(script, some, left())
            except DistLockError as error:
                return [error] * len(slots)
            return answers

        async def ask(node: ClusterNode) -> None:
            answers = await run(node)
            follow = None if timeout is None else now() + FOLLOW_TOGETHER
            for slot, answer in zip(by_node[node], answers, strict=True):
                found[slot] = answer
                if isinstance(answer, BackendUnavailable) or redirect_of(answer, node.at) is not None:
                    seconds = left()
                    bound = None if seconds is None else min(seconds, FOLLOWED)
                    again = methodcaller("run", script, calls[slot], bound)
                    found[slot] = await self._elsewhere(slot, node, answer, again, follow)

        await self._together(ask, by_node)
        return found

    async def _elsewhere(
        self,
        slot: int,
        node: ClusterNode,
        error: DistLockError,
        verb: Callable[[RedisPort], Awaitable[T]],
        until: float | None,
    ) -> T | DistLockError:
        """The answer of the node that has the slot now; else the failure of the one that was asked.

        ``until``: after that no node is asked. It is noted where the slot is, so that its locks are renewed there next.
        """
        to = redirect_of(error, node.at)
        if isinstance(to, Moved):
            self._routes.topology.moved(to.slot, to.to)
        elif to is None and not await self._routes.replaced(slot, node, self.runtime):
            return error
        if until is not None and now() > until:
            if to is None:
                return error
            return SlotMoving(f"The slot {slot} has moved: its locks are tried again there ({error.__cause__}).")
        try:
            return await self._route_to(slot, until).send(verb)
        except DistLockError as again:
            return again

    async def _together(self, work: Callable[[ClusterNode], Awaitable[T]], nodes: Iterable[ClusterNode]) -> list[T]:
        if self.runtime is THREADS:
            return [await work(node) for node in nodes]
        return await asyncio.gather(*(work(node) for node in nodes))


def _all_or_raise(found: dict[int, Reply]) -> dict[int, Reply]:
    for answer in found.values():
        if isinstance(answer, DistLockError):
            raise answer
    return found


def _by_slot(items: Iterable[T], name_of: Callable[[T], str]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for item in items:
        found.setdefault(slot_of(name_of(item)), []).append(item)
    return found
