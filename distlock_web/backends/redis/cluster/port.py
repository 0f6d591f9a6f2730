"""The verbs over a whole cluster: one lock is asked for at its node, several at all their nodes, in one write to each.

A node that answers MOVED, ASK or TRYAGAIN has done nothing, so that to ask again is no second copy of a request. A
script may also come upon a key at the other end of a move after it has written: each may be sent again (law 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TypeVar

from ....core.backend import Busy, Claim, Granted, LockInfo, Loss, WaiterInfo
from ....core.errors import BackendUnavailable, DistLockError
from ....core.runtime import THREADS, Runtime, now
from ..listing import newest
from ..port import RedisPort
from ..transport.exchange import Exchange
from ..transport.server import Server
from .node import Node, NodePort
from .redirects import redirect_of
from .route import Route, SlotMoving
from .routes import Routes
from .slots import SlotKeys, slot_of

T = TypeVar("T")


class ClusterPort:
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
                return await port.acquire(claim, None, busy.position)
            slept = True
            return await port.wait(claim, busy, seconds)

        answer = await route.send(ask)
        self._note(claim, answer, route.node)
        return answer

    def _note(self, claim: Claim, answer: Granted | Busy | None, node: Node) -> None:
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
            if node is not None:  # also where nobody serves the slot now: what it is handed there is given back
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

    def _port_of(self, node: Node) -> RedisPort:
        return RedisPort(node.server, self._exchange_of(node.server), self.runtime, self._keys)

    def _several_at(self, node: Node) -> NodePort:
        return NodePort(self._port_of(node), self._exchange_of(node.server), self._keys)

    def _route(self, claim: Claim, start: Node | None = None) -> Route:
        return Route(self._routes, self.runtime, self._port_of, slot_of(claim.name), claim, start)

    def _route_to(self, slot: int) -> Route:
        return Route(self._routes, self.runtime, self._port_of, slot)

    # Several locks -----------------------------------------------------------------------------------------------

    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> list[Loss | BackendUnavailable | None]:
        until = None if timeout is None else now() + timeout

        def left() -> float | None:
            return None if until is None else max(0.05, until - now())

        by_slot = _by_slot(claims, lambda claim: claim.name)
        losses = await self._of_slots(
            by_slot,
            lambda node, slots: node.extend([by_slot[slot] for slot in slots], left()),
            lambda slot, port: port.extend(by_slot[slot], left()),
        )
        if all(isinstance(found, BackendUnavailable) for found in losses.values()):
            _all_or_raise(losses)
        in_turn = {
            slot: repeat(found) if isinstance(found, BackendUnavailable) else iter(found)
            for slot, found in losses.items()
        }
        return [next(in_turn[slot_of(claim.name)]) for claim in claims]

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        if names is None:
            _, names = await self.names()
        by_slot = _by_slot(names, str)
        found = await self._of_slots(
            by_slot,
            lambda node, slots: node.inspect([by_slot[slot] for slot in slots]),
            lambda slot, port: port.inspect(by_slot[slot]),
        )
        return [line for lines in _all_or_raise(found).values() for line in lines]

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        found = await self._of_slots(
            await self._indexed(self._keys.indexes),
            lambda node, slots: node.names(slots, limit),
            lambda slot, port: port.names_in(self._keys.index_in(slot), limit),
        )
        listed = _all_or_raise(found).values()
        ends = sorted((end, name) for _, entries in listed for name, end in entries)
        return sum(total for total, _ in listed), [name for _, name in ends][:limit]

    async def done(self, limit: int) -> list[LockInfo]:
        found = await self._of_slots(
            await self._indexed(self._keys.done),
            lambda node, slots: node.done(slots, 2 * limit),
            lambda slot, port: port.done_in(self._keys.done_in(slot), 2 * limit),
        )
        listed = sorted((each for some in _all_or_raise(found).values() for each in some), reverse=True)
        return newest(await self.inspect([name for _, name in listed[: 2 * limit]]), limit)

    async def _indexed(self, indexes: str) -> list[int]:
        """The slots that have an index whose key begins so."""
        masters = await self._routes.masters(self.runtime)
        slots = await self._together(lambda node: self._several_at(node).indexed(masters[node], indexes), masters)
        return [slot for some in slots for slot in some]

    async def _of_slots(
        self,
        slots: Iterable[int],
        each: Callable[[NodePort, list[int]], Awaitable[Sequence[T | DistLockError]]],
        one: Callable[[int, RedisPort], Awaitable[T]],
    ) -> dict[int, T | BackendUnavailable]:
        """``each`` at every node with those of the slots that it serves; ``one`` for a slot that is elsewhere by now.

        A node that does not answer fails its own slots only. What is not an outage is raised.
        """
        by_node: dict[Node, list[int]] = {}
        found: dict[int, T | BackendUnavailable] = {}
        for slot in slots:
            try:
                by_node.setdefault(await self._routes.owner(slot, self.runtime), []).append(slot)
            except BackendUnavailable as error:  # a slot that nobody serves
                found[slot] = error

        async def ask(node: Node) -> None:
            some = by_node[node]
            answers: Sequence[T | DistLockError]
            try:
                answers = await each(self._several_at(node), some)
            except DistLockError as error:
                answers = [error] * len(some)
            for slot, answer in zip(some, answers, strict=True):
                if not isinstance(answer, DistLockError):
                    found[slot] = answer
                elif redirect_of(answer, node.at) is None and not isinstance(answer, BackendUnavailable):
                    raise answer
                else:
                    found[slot] = await self._elsewhere(slot, node, answer, partial(one, slot))

        # First those that answer: nobody's renewal waits for a node that is known to hang.
        await self._together(ask, sorted(by_node, key=lambda node: node.server.outage.silent))
        return found

    async def _elsewhere(
        self, slot: int, node: Node, error: DistLockError, verb: Callable[[RedisPort], Awaitable[T]]
    ) -> T | BackendUnavailable:
        """The answer of the node that has the slot now; else the failure of the one that was asked."""
        if isinstance(error, BackendUnavailable) and not await self._routes.replaced(slot, node, self.runtime):
            return error
        try:
            return await self._route_to(slot).send(verb)
        except BackendUnavailable as again:
            return again

    async def _together(self, work: Callable[[Node], Awaitable[T]], nodes: Iterable[Node]) -> list[T]:
        if self.runtime is THREADS:
            return [await work(node) for node in nodes]
        return await asyncio.gather(*(work(node) for node in nodes))


def _all_or_raise(found: Mapping[int, T | BackendUnavailable]) -> dict[int, T]:
    answers: dict[int, T] = {}
    for slot, answer in found.items():
        if isinstance(answer, BackendUnavailable):
            raise answer
        answers[slot] = answer
    return answers


def _by_slot(items: Iterable[T], name_of: Callable[[T], str]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for item in items:
        found.setdefault(slot_of(name_of(item)), []).append(item)
    return found
