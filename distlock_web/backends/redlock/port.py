"""The port: each verb is one question to every node, and counts where more than half of them agree.

Safety is the majority's alone. What follows is for those who wait, so that they neither storm nor split the votes for
ever. Every name has an order of the nodes, the same in all processes; the first that can be reached is its *lead*. Who
wants the lock asks all nodes at once, but it is had only by whom the lead does not refuse: of those who come at the
same time one goes on, the others give back what they got. Those who wait stand in the queue of the lead, which hands
the lock over as on one server; who was handed it there asks the others, which the same release has freed. Where
processes disagree about the lead, for a node has just failed or come back, two may go on at once: neither gets a
majority, each gives back what is not its lead's, and tries again after a time of its own.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss, WaiterInfo, drift
from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from ...core.runtime import now
from ..redis.port import RedisPort
from .listing import merged
from .node import Node
from .quorum import Part, unavailable
from .voters import FOREVER, Voters
from .votes import (
    DICE,
    Held,
    SplitVote,
    by_claim,
    count_kept,
    every_answer,
    failed_at_it,
    loss_of,
    outvoted,
)
from .wire import Question

#: Seconds between two questions of one whom the lead has let in, while others still have a majority: at first, at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
#: The same of one who does not wait, while nobody has a majority: a release is just on its way, or somebody's failure.
SPLIT_PAUSES = (0.002, 0.008, 0.032)
#: Seconds that one who waits goes on so before it says that the lock is busy.
TRIES_FOR = 0.5
#: Seconds that one whom the lead has let in has for a majority. After that the lead alone keeps nobody out: it may have
#: missed a release.
GRACE = 0.5
#: Seconds before it began within which an acquisition that succeeded may have been tried without success.
RETRIED_WITHIN = 5.0
#: Leases that one renewal takes again where a node has lost them.
MAX_REPAIRS = 8


class RedlockPort(Voters):
    """The verbs, in one mode."""

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        self._check_lease(claim.expire)
        for pause in SPLIT_PAUSES:
            answer = await self._attempt(claim, wait)
            if wait != 0 or not isinstance(answer, SplitVote):
                return answer
            await self._sleep(DICE.uniform(pause / 2, pause))
        await self._undo(claim, self._nodes)
        return answer

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        until = FOREVER if seconds is None else now() + seconds
        if busy.position:
            answer = await self._stand_in_queue(claim, busy, seconds)
            if isinstance(answer, Busy):
                return answer
        else:
            pause = min(busy.recheck_after, until - now())
            await self._sleep(pause)
            if pause < busy.recheck_after:
                return busy._replace(remaining=max(0.001, busy.remaining - pause))
        pause, tries_until = FIRST_PAUSE, min(until, now() + TRIES_FOR)
        while True:
            answer = await self._attempt(claim, None)
            if isinstance(answer, Granted) or answer.position or now() + pause >= tries_until:
                return answer
            await self._sleep(min(answer.recheck_after, DICE.uniform(pause / 2, pause)))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def cancel(self, claim: Claim) -> None:
        self._settle(claim, self._ledger.close(claim.token))
        await self._ask(lambda node, port: port.cancel(claim), every_answer, token=claim.token, also_down=True)

    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> list[Loss | BackendUnavailable | None]:
        for claim in claims:
            self._check_lease(claim.expire)
        within = FOREVER if timeout is None else timeout

        # As it is before they are asked: who answers, and then does what was to be undone, has no lease of ours.
        barred = [frozenset(self._ledger.barred.get(claim.token, ())) for claim in claims]

        def enough(parts: Sequence[Part[list[Loss | None]]]) -> bool:
            # Nobody waits for a renewal: there all are asked, so that what a node has lost is known.
            return not self._patient and all(
                list(given.values()).count(None) >= self._needed for given in by_claim(parts, barred)
            )

        parts = await self._ask(lambda node, port: port.extend(claims, timeout), enough, within=within)
        losses: list[Loss | BackendUnavailable | None] = []
        repairs: list[tuple[Node, Claim]] = []
        answered = self._answered(parts)
        silent = set(self._nodes) - {part.node for part in answered}
        for claim, given, without in zip(claims, by_claim(answered, barred), barred, strict=True):
            said = list(given.values())
            kept = said.count(None) >= self._needed
            if kept:
                losses.append(None)
            elif len(given) < self._needed or said.count(None) + len(silent - without) >= self._needed:
                # Those that did not answer may have it still: that is no loss.
                losses.append(BackendUnavailable(f"{len(given)} nodes told of {claim.name!r}, too few to know."))
            else:
                losses.append(loss_of(said, self._needed))
            repairs += [(node, claim) for node, loss in given.items() if kept and loss == "expired"]
        await self._repair(repairs)
        return losses

    async def release(self, claim: Claim, cooldown: float = 0.0) -> Loss | None:
        held = self._ledger.close(claim.token)
        # Who went down before it was asked for never had it; the others give it back when they can.
        since = held.begun - RETRIED_WITHIN if held is not None else 0.0
        asked = [node for node in self._order(claim.name) if (node.down_since or FOREVER) >= since]
        loss = await self._release(claim, cooldown, held, asked)
        if loss is None:
            self._ledger.released.append(claim.token)
        elif loss != "revoked" and claim.token in self._ledger.released:
            return None
        return loss

    async def _release(self, claim: Claim, cooldown: float, held: Held | None, asked: list[Node]) -> Loss | None:
        done: set[Node] = set()
        if held is not None and not cooldown:
            done = await self._direct.release(asked, claim, held.question)
            if len(done) >= self._needed and asked[0] in done:
                return None
        self._settle(claim, held)
        rest = [node for node in asked if node not in done]

        def enough(parts: Sequence[Part[Loss | None]]) -> bool:
            # The lead's, too: it is asked first by whoever comes. And sent to all: else a node keeps it from others.
            sent = not any(part.waits_for_another for part in parts)
            led = asked[0] in done or parts[0].done
            return sent and led and len(done) + count_kept(parts) >= self._needed

        parts = await self._ask(
            lambda node, port: port.release(claim, cooldown), enough, nodes=rest, token=claim.token, also_down=True
        )
        given = [None for _ in done] + [part.value for part in self._answered(parts, len(done))]
        if None in given and given.count(None) + len(self._nodes) - len(given) >= self._needed:
            return None
        return loss_of(given, self._needed)

    # Both are answered by all nodes that can: what one of them did late would meet the other, in another process.

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        self._check_lease(seconds)
        self._settle(claim, self._ledger.held.get(claim.token))
        parts = await self._ask(
            lambda node, port: port.detach(claim, transit, seconds), every_answer, token=claim.token
        )
        given = [part.value for part in self._answered(parts)]
        if given.count(None) < self._needed:
            if given.count(None) + len(parts) - len(given) >= self._needed:
                raise unavailable(parts, self._needed)  # those that did not answer may have it still
            return loss_of(given, self._needed)
        self._ledger.close(claim.token)
        return None

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        self._check_lease(claim.expire)
        begun = now()
        parts = await self._ask(
            lambda node, port: port.attach(claim, transit), every_answer, token=claim.token, within=claim.expire
        )
        self._answered(parts)
        given = [part.value.fence or 0 for part in parts if part.value is not None]
        if len(given) < self._needed:
            await self._give_back(claim, parts)
            return None
        fence = max(sorted(given), key=given.count)
        return self._granted(claim, fence, begun)

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        parts = await self._ask(lambda node, port: port.inspect(names), every_answer)
        answered = self._answered(parts)
        by_name: dict[str, list[tuple[Node, LockInfo]]] = {}
        for part in answered:
            for line in part.value or ():
                by_name.setdefault(line.name, []).append((part.node, line))
        needed = self._needed - (len(self._nodes) - len(answered))  # the others may have it, too
        lines = [merged(given, self._lead(name), needed) for name, given in by_name.items()]
        return sorted((line for line in lines if line is not None), key=lambda line: line.remaining)

    async def names(self, limit: int | None = None) -> tuple[int, list[str]]:
        held = [line.name for line in await self.inspect()]
        return len(held), held[:limit]

    async def waiters(self, name: str, limit: int) -> list[WaiterInfo]:
        return await self._ask_one(self._lead(name), lambda node, port: port.waiters(name, limit))

    async def revoke(self, name: str, fence: int) -> bool:
        shown = self._answered(await self._ask(lambda node, port: port.inspect([name]), every_answer))
        holders = {line.holder for part in shown for line in part.value or () if line.fence == fence}
        # A node that has lost the lock and got it again has it under a fence of its own.
        meant = {part.node: line for part in shown for line in part.value or () if line.holder in holders}
        if not meant:
            return False
        parts = await self._ask(
            lambda node, port: port.revoke(name, meant[node].fence or 0), every_answer, nodes=list(meant)
        )
        kept = len(self._nodes) - len(shown) + sum(not part.done or part.error is not None for part in parts)
        if kept >= self._needed:
            raise unavailable(parts, self._needed)
        return any(part.value for part in parts)

    # To take it ----------------------------------------------------------------------------------------------------

    async def _attempt(self, claim: Claim, wait: float | None) -> Granted | Busy:
        begun, order = now(), self._order(claim.name, claim.token)
        lead = order[0]
        held = self._ledger.held.get(claim.token)
        fence = held.fence if held is not None else self._ledger.propose(self._nodes)

        if not self._ledger.knows(claim.token):
            taken = await self._take(order, claim, fence, begun)
            if taken is not None:
                return taken

        def verb(node: Node, port: RedisPort) -> Coroutine[Any, Any, Granted | Busy]:
            return port.acquire(claim, wait if node is lead else 0, fence)

        def enough(parts: Sequence[Part[Granted | Busy]]) -> bool:
            first = next(part for part in parts if part.node is lead)
            if not first.done or type(first.value) is Busy:
                return False  # refused: what the others have given has to be known, to be given back
            return sum(type(part.value) is Granted for part in parts) >= self._needed

        parts = await self._ask(verb, enough, nodes=order, token=claim.token, within=claim.expire)
        if self._members.twice:
            raise ConfigurationError(self._members.twice)
        return await self._outcome(claim, parts, lead, begun, waits=wait != 0)

    async def _outcome(
        self, claim: Claim, parts: Sequence[Part[Granted | Busy]], lead: Node, begun: float, waits: bool
    ) -> Granted | Busy:
        """What the answers of an attempt make of it; votes that are too few are given back."""
        granted = {part.node: part.value for part in parts if isinstance(part.value, Granted)}
        refused = next((part.value for part in parts if part.node is lead and isinstance(part.value, Busy)), None)
        if len(granted) >= self._needed and (refused is None or (refused.held_for or 0.0) > GRACE):
            if refused is not None and waits:
                await self._undo(claim, [lead])  # we stand in its queue
            fence = await self._agree(claim, [answer.fence or 0 for answer in granted.values()])
            for port in self._ports.values():  # of a lead that has not let us in, or was one before
                port.stop_waiting(claim.token)
            return self._granted(claim, fence, begun)
        self._answered(parts)
        refusals = [part.value for part in parts if isinstance(part.value, Busy)]
        split = refused is None and len(refusals) < self._needed
        asked_in_vain = any(part.node is lead and failed_at_it(part) for part in parts)
        kept = {lead} if (waits or split) and not asked_in_vain else set()
        await self._give_back(claim, [part for part in parts if part.node not in kept])
        if refused is None:
            return outvoted(refusals, split, LONGEST_PAUSE)
        if waits:
            self._ledger.queued[claim.token] = lead
        return refused

    async def _take(self, order: list[Node], claim: Claim, fence: int, begun: float) -> Granted | None:
        """A lock that is free, in one round trip. None: it is not, or the ports have to ask."""
        taken = await self._direct.take(order, claim, fence)
        if taken is None or self._members.twice:
            return None
        try:
            return self._granted(claim, await self._agree(claim, taken.fences), begun, taken.question)
        except BaseException:
            if taken.question is not None:
                taken.question.undo = True
            raise

    def _granted(self, claim: Claim, fence: int, begun: float, question: Question | None = None) -> Granted:
        took = now() - begun
        if took >= claim.expire - drift(claim.expire):
            raise BackendUnavailable(
                f"A majority of the nodes needed {took:.3f} s to give the lock, and its lease is {claim.expire:g} s."
            )
        self._ledger.open(claim.token, Held(fence, begun, question))
        return Granted(fence, begun)

    async def _agree(self, claim: Claim, fences: list[int]) -> int:
        """One fence that a majority has written down: the next holder's is greater, whichever majority gives it."""
        highest = max(fences)
        if fences.count(highest) >= self._needed:
            return highest

        def enough(parts: Sequence[Part[Granted | Busy]]) -> bool:
            return (
                sum(isinstance(part.value, Granted) and (part.value.fence or 0) >= highest for part in parts)
                >= self._needed
            )

        parts = await self._ask(
            lambda node, port: port.acquire(claim, 0, highest), enough, token=claim.token, within=claim.expire
        )
        if not enough(parts):
            raise unavailable(parts, self._needed)
        return highest

    async def _stand_in_queue(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        """The lead's answer, after a sleep. Where the lead is another one by now: the place in the queue goes along."""
        lead = self._lead(claim.name, claim.token)
        before = self._ledger.queued.get(claim.token, lead)
        if before is not lead:
            self._ledger.bar(before, claim)
            self._ports[before].stop_waiting(claim.token)
            self._ledger.queued[claim.token] = lead
        try:
            return await self._ask_one(lead, lambda node, port: port.wait(claim, busy, seconds), claim.token)
        except DistLockError:
            if self._lead(claim.name, claim.token) is lead:
                raise
            return busy  # asked again at once, at another node

    async def _repair(self, lost: list[tuple[Node, Claim]]) -> None:
        """Take leases that a majority has again on nodes that have lost them: the next loss shall not be the last."""
        for node, claim in lost[:MAX_REPAIRS]:
            held = self._ledger.held.get(claim.token)
            if held is None:
                continue
            await self._ask(
                lambda node, port, claim=claim, fence=held.fence: port.acquire(claim, 0, fence),  # type: ignore[misc]
                every_answer,
                nodes=[node],
            )
            if claim.token not in self._ledger.held:  # released meanwhile: it must not come after that
                await self._ask(lambda node, port, claim=claim: port.cancel_now(claim), every_answer, nodes=[node])  # type: ignore[misc]
