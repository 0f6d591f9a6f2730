"""How a port asks its nodes: which, in which order, what counts as an answer of the whole, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from zlib import crc32

from ...core.backend import Busy, Claim, Granted
from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ...core.runtime import TASKS, Runtime
from ..redis.port import RedisPort
from .direct import DirectTasks, DirectThreads
from .lane import Lanes
from .node import Members, Node
from .quorum import Part, ask, finish, run_blocking, unavailable
from .votes import Held, Ledger, every_answer, failed_at_it, may_have_it

T = TypeVar("T")

#: What a node is asked.
Verb = Callable[[Node, RedisPort], Coroutine[Any, Any, T]]
FOREVER = float("inf")


class Voters:
    """The nodes of one port, and the port of each."""

    def __init__(
        self,
        runtime: Runtime,
        ports: Sequence[tuple[Node, RedisPort]],
        members: Members,
        ledger: Ledger,
        lanes: Lanes,
        longest: float,
        patient: bool = False,
    ) -> None:
        self.runtime = runtime
        self._ports = dict(ports)
        self._nodes = [node for node, _ in ports]
        self._orders = [self._nodes[first:] + self._nodes[:first] for first in range(len(ports))]
        self._members = members
        self._ledger = ledger
        self._longest = longest  #: seconds of the longest lease after which a node may come back empty; 0: any
        self._patient = patient  #: asks also nodes that cannot be reached, if the others are too few
        self._needed = len(self._nodes) // 2 + 1
        index = self._nodes[0].index
        self._direct = (
            DirectTasks(ledger, self._needed, index)
            if runtime is TASKS
            else DirectThreads(lanes, ledger, self._needed, index)
        )

    def _check_lease(self, seconds: float) -> None:
        if 0 < self._longest < seconds:
            raise ConfigurationError(
                f"A lease of {seconds:g} s is longer than OPTIONS['restart_delay'], {self._longest:g} s: a node that "
                f"came back empty would vote for somebody else while it runs. Set restart_delay to the longest lease, "
                f"or to 0 if the nodes keep their data through a restart (appendfsync always)."
            )

    async def _ask(
        self,
        verb: Verb[T],
        enough: Callable[[Sequence[Part[T]]], bool],
        *,
        nodes: Sequence[Node] | None = None,
        token: str = "",
        within: float = FOREVER,
        also_down: bool = False,
    ) -> list[Part[T]]:
        """Ask these nodes, or all, until enough is known. One that cannot be reached fails at once."""
        if self.runtime is not TASKS:
            finish(self._nodes, patient=False)
        asked = self._nodes if nodes is None else nodes
        also_down = also_down or (self._patient and sum(node.down_since is None for node in asked) < self._needed)
        barred = self._ledger.barred.get(token, ()) if not also_down else ()
        parts = [Part(node, self._bound(verb, node), token) for node in asked]
        for part, node in zip(parts, asked, strict=True):
            if not also_down:
                self._rule_out(part, node, node in barred)
        first = parts
        if self.runtime is not TASKS and token and not also_down:
            first = [part for part, node in zip(parts, asked, strict=True) if not node.lagging]
            if len(first) < self._needed:
                first = parts
        await ask(self.runtime, first, lambda: enough(parts), within)
        if first is not parts and not enough(parts):
            await ask(self.runtime, [part for part in parts if part not in first], lambda: enough(parts), within)
        return parts

    def _bound(self, verb: Verb[T], node: Node) -> Callable[[], Coroutine[Any, Any, T]]:
        return lambda: verb(node, self._ports[node])

    def _rule_out(self, part: Part[Any], node: Node, barred: bool) -> None:
        if barred:
            part.fail(BackendUnavailable(f"{node} has not confirmed that an earlier attempt was undone."))
            return
        try:
            node.check_down()
        except DistLockError as error:
            part.fail(error)

    async def _ask_one(self, node: Node, verb: Verb[T], token: str = "") -> T:
        """The answer of one node, however long it takes. A task that is cancelled meanwhile asks no longer."""
        node.check_down()
        if self.runtime is not TASKS:
            return run_blocking(node, self._bound(verb, node), token)
        try:
            return await verb(node, self._ports[node])
        except DistLockError as error:
            node.failed(error)
            raise

    def _answered(self, parts: Sequence[Part[T]], before: int = 0) -> list[Part[T]]:
        """Those that have an answer; raises if they, and so many others, are too few."""
        answered = [part for part in parts if part.done and part.error is None]
        if before + len(answered) < self._needed:
            raise unavailable(parts, self._needed)
        return answered

    def _order(self, name: str, token: str = "") -> list[Node]:
        """The same in all processes, but for nodes that have no vote now: these come last."""
        order = self._orders[crc32(name.encode("utf-8", "surrogatepass")) % len(self._nodes)]
        barred = self._ledger.barred.get(token, ())
        for node in order:
            if node.down_since is not None or barred:
                return sorted(order, key=lambda node: node.down_since is not None or node in barred)
        return order

    def _lead(self, name: str, token: str = "") -> Node:
        return self._order(name, token)[0]

    def _settle(self, claim: Claim, held: Held | None) -> None:
        """What is asked for its token from now on comes after its acquisition."""
        if held is not None and held.question is not None:
            self._direct.settle(self._nodes, held.question)

    async def _give_back(
        self, claim: Claim, parts: Sequence[Part[Granted | Busy]] | Sequence[Part[Granted | None]]
    ) -> None:
        """Undo what these have given, or may give yet: at once, or when no late copy of the question can come."""
        await self._undo(claim, [part.node for part in parts if may_have_it(part)])
        for part in parts:
            if failed_at_it(part):
                self._ports[part.node].forget(claim.token)
                self._ledger.bar(part.node, claim)

    async def _undo(self, claim: Claim, nodes: list[Node]) -> None:
        """Give back what these nodes have given, or may give yet. Who does not confirm it has no vote until then.

        For it will be done later, and may then undo what the node has given anew.
        """
        barred = self._ledger.barred.get(claim.token, ())
        nodes = [node for node in nodes if node not in barred]
        if not nodes:
            return
        # No tombstone: it would refuse this token when that asks again, and no copy of what was answered is on its way.
        parts = await self._ask(
            lambda node, port: port.cancel_now(claim, 0), every_answer, nodes=nodes, token=claim.token
        )
        for part in parts:
            if not part.done or part.error is not None:
                self._ledger.bar(part.node, claim)

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self.runtime.parker().park(seconds)
