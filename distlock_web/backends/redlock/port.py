"""The port: each verb is one question to every node, and counts where more than half of them agree.

It is Redlock as its author describes it: ask all nodes with a short time-out, count a majority, look whether enough of
the lease is left, undo everywhere what did not come together, and try again after a random pause. Each attempt has a
number of its own beside its token, so that what arrives late (a vote, an undo) belongs to an attempt that is over.

    all nodes ──vote──> a majority, in time                 Granted
                        a majority is another token's       Busy: asked again when that ends, or its release is heard
                        nobody has a majority               SplitVote: undone, and tried again after a random pause
                        fewer than a majority can vote      BackendUnavailable, with what each node said
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import partial

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss, drift
from ...core.errors import BackendUnavailable, ConfigurationError
from ...core.runtime import Runtime, now
from ..redis.listing import infos
from .asking import Question, Reply, ask_one, unavailable
from .listing import inspect
from .membership import APART_US, explain, has_no_memory, has_time, of_one_time, raise_if_wrong
from .node import Node
from .notifications import Notifications
from .quorum import Args, Quorum, gave
from .scripts import EXCHANGE, EXTEND, INSPECT, RELEASE, REVOKE, VOTE

_LOSSES: dict[int, Loss | None] = {0: None, 1: "expired", 2: "taken", 3: "revoked"}

#: Seconds to wait at most before the next attempt where nobody has a majority, one after the other.
SPLIT_PAUSES = (0.004, 0.016, 0.064)
#: The same where a release was heard of, and a majority has not got it yet.
RELEASE_PAUSES = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)
#: Seconds until a waiter asks again that no node tells of a release yet; and that one does: a message may be lost.
UNHEARD_PAUSE, LONGEST_SLEEP = 1.0, 30.0
#: Releases that are remembered.
RELEASED_KEPT = 500
#: Leases that one renewal takes again where a node has lost them.
MAX_REPAIRS = 8

DICE = random.SystemRandom()  # a forked child throws others than its parent


class SplitVote(Busy):
    """Nobody has a majority: to ask again soon may help."""


class Ended:
    """Tokens of leases that are over, for all ports of a store."""

    def __init__(self) -> None:
        self.releasing: set[str] = set()  #: a renewal that is on its way shall not vote for them again
        self.released: deque[str] = deque(maxlen=RELEASED_KEPT)  #: lately: a second time is no loss

    def __contains__(self, token: str) -> bool:
        return token in self.releasing or token in self.released


class RedlockPort:
    """The verbs, in one mode."""

    def __init__(
        self,
        runtime: Runtime,
        quorum: Quorum,
        notifications: Notifications,
        ended: Ended,
        patient: bool = False,
    ) -> None:
        self.runtime = runtime
        self._quorum = quorum
        self._patient = patient  #: for renewals: nobody waits for them
        self._notifications = notifications
        self._ended = ended

    # To take it ----------------------------------------------------------------------------------------------------

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        self._check_lease(claim.expire)
        answer = await self._attempts(claim, wait)
        if isinstance(answer, Granted):
            self._notifications.forget(claim, served=True)
        elif wait != 0:
            # It is woken when the node begins to tell us: a release that came before that is not heard of.
            self._notifications.expect(claim, self.runtime)
        return answer

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        told = self._notifications
        parker, releases = told.expect(claim, self.runtime), told.releases(claim.name)
        pause, begun = min(busy.recheck_after, LONGEST_SLEEP if told.hears(claim.name) else UNHEARD_PAUSE), now()
        sooner = seconds is not None and seconds < pause
        woken = await parker.park(seconds if sooner else pause)
        if sooner and not woken:
            return busy._replace(remaining=max(0.001, busy.remaining - (now() - begun)))
        answer = await self._attempts(claim, None)
        for pause in RELEASE_PAUSES if told.releases(claim.name) > releases else ():
            # The node that tells has it back. Where a majority has not yet, the release is on its way there.
            if isinstance(answer, Granted) or answer.position != busy.position:
                break
            await self._sleep(DICE.uniform(pause / 2, pause))
            answer = await self._attempts(claim, None)
        if isinstance(answer, Granted):
            told.forget(claim, served=True)
        return answer

    async def cancel(self, claim: Claim) -> None:
        self._notifications.forget(claim)
        await self._undo(claim, "", self._quorum.nodes)

    async def _attempts(self, claim: Claim, wait: float | None) -> Granted | Busy:
        """More than one only where nobody has the lock: of those who come at the same moment one shall have it."""
        for pause in SPLIT_PAUSES:
            answer = await self._attempt(claim, wait)
            if not isinstance(answer, SplitVote):
                return answer
            await self._sleep(DICE.uniform(0, pause))
        return await self._attempt(claim, wait)

    async def _attempt(self, claim: Claim, wait: float | None) -> Granted | Busy:
        begun = now()
        attempt = _number(begun)
        questions = await self._vote(claim, attempt, self._proposal(), wait)
        if await self._quorum.found(questions):
            questions = await self._vote(claim, attempt, self._proposal(), wait)
        raise_if_wrong(questions)
        answered = [each for each in questions if each.answered]  # now: others may answer while these are undone
        granted = [each for each in answered if gave(each)]
        fence = await self._agree_on_fence(claim, attempt, granted) if self._agree_on_time(granted) else 0
        if fence and now() - begun < claim.expire - drift(claim.expire):
            return Granted(fence, begun)
        await self._undo(claim, attempt, [each.node for each in questions if gave(each) or each.is_open])
        if len(granted) >= self._quorum.needed:
            raise BackendUnavailable(
                f"A majority gave {claim.name!r}, but it took {now() - begun:.2f} s of {claim.expire:g} s, or the "
                f"clocks of the nodes are apart (`distlock doctor` says by how much)."
            )
        if len(answered) < self._quorum.needed:
            raise unavailable(questions, self._quorum.needed)
        return self._busy(len(granted), [each.reply for each in answered if each not in granted])

    async def _vote(
        self,
        claim: Claim,
        attempt: int,
        fence: int,
        wait: float | None = 0,
        *,
        exact: bool = False,
        nodes: Sequence[Node] | None = None,
    ) -> list[Question]:
        expire, ahead, waits = _ms(claim.expire), "" if exact else APART_US, "" if wait == 0 else 1
        tail = (claim.token, attempt, expire, fence or "", ahead, claim.holder, waits)
        sent, within = now(), min(self._quorum.timeout, claim.expire)

        def enough(questions: Sequence[Question]) -> bool:
            return sum(map(gave, questions)) >= self._quorum.needed

        def args(node: Node) -> Args:
            return (node.who, self._quorum.delay_us, *tail)

        questions = await self._quorum.ask(VOTE, [claim.name], args, enough, nodes=nodes, within=within)
        for question in questions:
            if has_time(question):
                question.node.ahead_us = int(question.reply[1] - sent * 1_000_000)
            explain(question)
        return questions

    def _agree_on_time(self, granted: Sequence[Question]) -> bool:
        return len(of_one_time(granted) if self._quorum.restart_delay else granted) >= self._quorum.needed

    async def _agree_on_fence(self, claim: Claim, attempt: int, granted: Sequence[Question]) -> int:
        """One that a majority knows before it is given: the next majority gives a greater one. 0: there is none."""
        while True:
            fence, votes = Counter(each.reply[0] for each in granted).most_common(1)[0]
            if votes >= self._quorum.needed:
                return int(fence)
            highest = max(each.reply[0] for each in granted)
            granted = [each for each in await self._vote(claim, attempt, highest, exact=True) if gave(each)]
            if len(granted) < self._quorum.needed:
                return 0

    def _proposal(self) -> int:
        """The time of the nodes, as we last heard it: so all give the same fence. 0: each shall say its own."""
        ahead = [node.ahead_us for node in self._quorum.nodes if node.ahead_us is not None]
        return max(ahead) + int(now() * 1_000_000) if ahead else 0

    def _busy(self, granted: int, refusals: list[Reply]) -> Busy:
        """When it may be had, and who has it; of this many votes for us and the refusals."""
        token, votes = Counter(reply[3] for reply in refusals).most_common(1)[0]
        ends = sorted(reply[2] / 1000 for reply in refusals)
        remaining = ends[min(self._quorum.needed - granted, len(ends)) - 1]  # as many have to end as we lack
        _, now_us, _, _, since, holder = next(reply for reply in refusals if reply[3] == token)
        who, held_for = holder.decode("utf-8", "replace"), max(0, now_us - since) / 1_000_000
        silent = len(self._quorum.nodes) - granted - len(refusals)
        # Where nodes are silent, one who has just got too few votes may have to give them back, as we have.
        has_it = votes + silent >= self._quorum.needed and held_for >= self._quorum.timeout
        if votes < self._quorum.needed and not has_it:
            return SplitVote(min(remaining, DICE.uniform(*SPLIT_PAUSES[-2:])), remaining, 0, who, held_for)
        # Not all who wait ask at the moment when it ends.
        recheck_after, position = remaining + DICE.uniform(0, SPLIT_PAUSES[0]), int(token[-12:], 16)
        return Busy(recheck_after, remaining, position, who, held_for)

    # To keep it and to give it back ----------------------------------------------------------------------------------

    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> list[Loss | BackendUnavailable | None]:
        for claim in claims:
            self._check_lease(claim.expire)
        tail = [value for claim in claims for value in (claim.token, _ms(claim.expire))]

        def enough(questions: Sequence[Question]) -> bool:
            # Nobody waits for a renewal: there all are asked, so that what a node has lost is known.
            answers = [each.reply for each in questions if each.answered and len(each.reply) == len(claims)]
            kept = (given.count(0) >= self._quorum.needed for given in zip(*answers, strict=True))
            return not self._patient and len(answers) >= self._quorum.needed and all(kept)

        names = [claim.name for claim in claims]
        questions = await self._quorum.ask(EXTEND, names, lambda node: (node.who, *tail), enough, within=timeout)
        for question in questions:
            explain(question)
        raise_if_wrong(questions)
        answered = self._quorum.answered(questions)
        losses: list[Loss | BackendUnavailable | None] = []
        repairs: list[tuple[Claim, list[Node]]] = []
        for place, claim in enumerate(claims):
            given = [each.reply[place] for each in answered]
            losses.append(self._loss_of(claim, given))
            if losses[-1] is None and 1 in given:
                repairs.append((claim, [each.node for each in answered if each.reply[place] == 1]))
        for claim, nodes in repairs[:MAX_REPAIRS]:
            await self._repair(claim, nodes)
        return losses

    def _loss_of(self, claim: Claim, given: Sequence[int]) -> Loss | BackendUnavailable | None:
        if given.count(0) >= self._quorum.needed:
            return None
        if given.count(0) + len(self._quorum.nodes) - len(given) >= self._quorum.needed:  # the others may have it still
            return BackendUnavailable(f"{len(given)} nodes told of {claim.name!r}, too few to know.")
        return self._why(given)

    async def _repair(self, claim: Claim, nodes: Sequence[Node]) -> None:
        """Take it again where a node has lost it: so a lease outlives the restart of one node after the other."""
        for again in (False, True):
            if claim.token in self._ended:
                return
            attempt = _number(now())
            questions = await self._vote(claim, attempt, 0, exact=True, nodes=nodes)
            if claim.token in self._ended:  # the release may have come there before this
                await self._undo(claim, attempt, nodes)
                return
            if again or not any(has_no_memory(each.reply) for each in questions):
                return
            await self._quorum.found(await self._quorum.look())

    async def release(self, claim: Claim, cooldown: float = 0.0) -> Loss | None:
        def enough(questions: Sequence[Question]) -> bool:
            return [each.reply for each in questions if each.answered].count(0) >= self._quorum.needed

        tail = (claim.token, "", _ms(cooldown) if cooldown else 0)
        # The first node tells those who wait: it is sent to last.
        nodes = self._quorum.nodes[::-1]
        owing = [node for node in nodes if node.is_owing]
        self._ended.releasing.add(claim.token)
        try:
            questions = await self._quorum.ask(RELEASE, [claim.name], lambda _: tail, enough, nodes=nodes)
            if not cooldown:
                for question in questions:
                    if not question.answered or question.node in owing:
                        self._undo_later(question.node, claim, "")
            return self._loss_at_release(claim, questions)
        finally:
            self._ended.releasing.discard(claim.token)

    def _loss_at_release(self, claim: Claim, questions: Sequence[Question]) -> Loss | None:
        given = [each.reply for each in questions if each.answered]
        silent = len(self._quorum.nodes) - len(given)
        if given.count(0) >= self._quorum.needed or (given.count(0) and given.count(0) + silent >= self._quorum.needed):
            self._ended.released.append(claim.token)
            return None
        if len(given) < self._quorum.needed:
            raise unavailable(questions, self._quorum.needed)
        loss = self._why(given)
        return None if claim.token in self._ended.released and loss != "revoked" else loss

    def _why(self, given: Iterable[int]) -> Loss:
        """Why a lease that has no majority is gone."""
        said = Counter(_LOSSES[answer] for answer in given)
        if said["revoked"]:
            return "revoked"
        return "taken" if said["taken"] >= self._quorum.needed else "expired"

    async def _undo(self, claim: Claim, attempt: int | str, nodes: Sequence[Node]) -> None:
        """Take back what these nodes have given, or may give yet; where one does not answer, as soon as it does."""
        if nodes:
            for question in await self._quorum.ask(
                RELEASE, [claim.name], lambda _: (claim.token, attempt, 0), nodes=nodes
            ):
                if not question.answered:
                    self._undo_later(question.node, claim, attempt)

    def _undo_later(self, node: Node, claim: Claim, attempt: int | str) -> None:
        keys = node.keys(claim.name)
        work = partial(ask_one, node, RELEASE, keys, (claim.token, attempt, 0))
        # After that it has ended by itself: a vote lives for `expire`, and the question was sent within the time-out.
        node.later(work, within=claim.expire + node.timeout)

    # To hand it over -----------------------------------------------------------------------------------------------

    async def detach(self, claim: Claim, transit: str, seconds: float) -> Loss | None:
        self._check_lease(seconds)
        questions = await self._exchange(claim.name, claim.token, "held", transit, "transit", seconds, "")
        answered = self._quorum.answered(questions)
        done = sum(map(gave, answered))
        if done >= self._quorum.needed:
            return None
        if done + len(self._quorum.nodes) - len(answered) >= self._quorum.needed:
            raise unavailable(questions, self._quorum.needed)  # those that did not answer may have it still
        return self._why(each.reply[1] for each in answered if not gave(each))

    async def attach(self, claim: Claim, transit: str) -> Granted | None:
        self._check_lease(claim.expire)
        begun = now()
        questions = await self._exchange(
            claim.name, transit, "transit", claim.token, "held", claim.expire, claim.holder
        )
        fences = [each.reply[0] for each in self._quorum.answered(questions) if gave(each)]
        if len(fences) < self._quorum.needed:
            await self._undo(claim, "", [each.node for each in questions if gave(each) or each.is_open])
            return None
        return Granted(max(sorted(fences), key=fences.count), begun)

    async def _exchange(
        self, name: str, token: str, state: str, new: str, its_state: str, seconds: float, holder: str
    ) -> list[Question]:
        tail = (token, state, new, _number(now()), its_state, _ms(seconds), holder)
        questions = await self._quorum.ask(EXCHANGE, [name], lambda node: (node.who, *tail))
        for question in questions:
            explain(question)
        raise_if_wrong(questions)
        return questions

    # To look ---------------------------------------------------------------------------------------------------------

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        return await inspect(self._quorum, names)

    async def revoke(self, name: str, fence: int) -> bool:
        shown = self._quorum.answered(await self._quorum.ask(INSPECT, [name], lambda _: ()))
        lines = {each.node: line for each in shown for line in infos([name], each.reply)}
        holders = {line.holder for line in lines.values() if line.fence == fence}
        # A node that has lost the lock and got it again has it under a fence of its own.
        meant = {node: line.fence or 0 for node, line in lines.items() if line.holder in holders}
        if not meant:
            return False
        questions = await self._quorum.ask(REVOKE, [name], lambda node: (meant[node],), nodes=list(meant))
        kept = len(self._quorum.nodes) - len(shown) + sum(not each.answered for each in questions)
        if kept >= self._quorum.needed:
            raise unavailable(questions, self._quorum.needed)
        return any(each.reply for each in questions)

    def _check_lease(self, seconds: float) -> None:
        longest = self._quorum.restart_delay
        if longest and seconds > longest:
            raise ConfigurationError(
                f"A lease of {seconds:g} s is longer than OPTIONS['restart_delay'], {longest:g} s: a node that has "
                f"restarted would vote again before it ends."
            )

    async def _sleep(self, seconds: float) -> None:
        await self.runtime.parker().park(seconds)


def _number(moment: float) -> int:
    """Of an attempt: more than that of every one before, for it is our clock."""
    return int(moment * 1_000_000)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
