"""The port: each verb is one question to every node, and counts where more than half of them agree.

It is Redlock as its author describes it: ask all nodes with a short time-out, count a majority, look whether enough of
the lease is left, undo everywhere what did not come together, and try again after a random pause. Each attempt has a
number of its own beside its token, so a late vote or undo belongs to an attempt that is over.

    all nodes ──vote──> a majority, in time                 Granted
                        a majority is another token's       Busy: asked again when that ends, or its release is heard
                        no caller has a majority            undone, and tried again after a random pause
                        fewer than a majority can vote      BackendUnavailable, with what each node said
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ...core.backend import Busy, Claim, Granted, LockInfo, Loss, Port, drift
from ...core.errors import BackendUnavailable, ConfigurationError
from ...core.runtime import DICE, Runtime, Token, now
from ..redis.listing import BATCH, NAMES_BATCH, ends, infos
from ..redis.port import LOSSES
from ..redis.scripts import NAMES
from .asking import Args, Enough, Question, every_answer, said_instead, unavailable
from .node import APART_US, Node, WrongQuorum
from .quorum import Quorum, gave
from .scripts import EXTEND, INSPECT, RELEASE, REVOKE, VOTE

#: Seconds to wait at most before the next attempt, one after the other: where no caller has a majority, or a release
#: was heard of that a majority has not got yet.
PAUSES = (0.004, 0.016, 0.064, 0.256)
#: Seconds until a waiter asks again that no node tells of a release yet; and that one does: a message may be lost, and
#: who was told may stand still.
UNHEARD_PAUSE, LONGEST_SLEEP = 1.0, 5.0
#: Releases that are remembered.
RELEASED_KEPT = 500

#: In place of the µs that a fence may be ahead of a node's time: another node has given it.
GIVEN = ""


class RedlockPort(Port):
    """The verbs, in one mode."""

    def __init__(self, runtime: Runtime, quorum: Quorum, released: deque[str]) -> None:
        self.runtime = runtime
        self._quorum = quorum
        self._released = released  #: lately, by all ports of the store: a second time is no loss

    # To take it ----------------------------------------------------------------------------------------------------

    async def acquire(self, claim: Claim, wait: float | None) -> Granted | Busy:
        if wait != 0:
            self._quorum.teller().server.listener.expect(claim, self.runtime)  # a release may be told before the answer
        return await self._attempts(claim, wait)

    async def wait(self, claim: Claim, busy: Busy, seconds: float | None) -> Granted | Busy:
        listener, begun = self._quorum.teller().server.listener, now()
        waiter, hears = listener.expect(claim, self.runtime), listener.ready
        pause = min(busy.recheck_after, DICE.uniform(0.5, 1.0) * LONGEST_SLEEP if hears else UNHEARD_PAUSE)
        left = pause if seconds is None else min(seconds, pause)
        woken = await listener.sleep(waiter, left)  # also when it begins to hear
        if left < pause and not woken:
            return busy._replace(remaining=max(0.001, busy.remaining - (now() - begun)))
        # The node that tells of a release has it back. A majority may not have it yet.
        return await self._attempts(claim, None, leaving=busy.memo if woken and hears else None)

    async def cancel(self, claim: Claim) -> None:
        self._wait_no_longer(claim)
        await self._undo(claim, "", self._quorum.nodes)

    def _wait_no_longer(self, claim: Claim) -> None:
        for node in self._quorum.nodes:  # another one told it, as long as that answered
            node.server.listener.remove(claim.token)

    async def _attempts(self, claim: Claim, wait: float | None, leaving: int | None = None) -> Granted | Busy:
        """Again if no caller has it, for one of those that came together shall; or if its holder is ``leaving``.

        The memo of ``Busy`` is whose lock it is: the number of its acquisition. None: no caller has a majority.
        """
        answer = await self._attempt(claim, wait)
        for pause in PAUSES:
            if isinstance(answer, Granted) or answer.memo not in (None, leaving):
                break
            await self.runtime.parker().park(DICE.uniform(pause / 2, pause))
            answer = await self._attempt(claim, wait)
        if isinstance(answer, Granted):
            self._wait_no_longer(claim)
        return answer

    async def _attempt(self, claim: Claim, wait: float | None) -> Granted | Busy:
        quorum, begun = self._quorum, now()
        attempt = _number(begun)
        questions = await self._vote(claim, attempt, self._proposal(), wait=wait)
        asked = [questions]
        if await quorum.found():
            questions = await self._vote(claim, attempt, self._proposal(), wait=wait)
            asked.append(questions)  # a node that was silent by then may have the first question still
        if self._read_late(claim, questions):
            questions = await self._vote(claim, attempt, self._proposal(), wait=wait)
            asked.append(questions)
        quorum.raise_if_wrong()
        answered = [each for each in questions if each.answered]  # now: others may answer while these are undone
        granted = [each for each in answered if gave(each)]
        margin, (at_least, at_most) = drift(claim.expire), quorum.apart(granted)
        # A clock that was set ahead may have ended another's lease: by more than that allows for, it is waited for.
        # A caller that reads late does not know how far they are apart: that costs it time, and not the lock.
        early, latest = max(0.0, at_most - margin), begun + claim.expire - margin
        are_apart = at_least > margin + quorum.timeout
        fence = 0 if are_apart else await self._agree_on_fence(claim, attempt, granted, asked)
        if fence and now() + early < latest:
            if early:
                await self.runtime.parker().park(early)
            if now() < latest:  # it may have slept longer
                return Granted(fence, begun)
        given = dict.fromkeys(each.node for some in asked for each in some if gave(each) or each.is_open)
        await self._undo(claim, attempt, list(given), waits=wait != 0)
        if len(granted) >= quorum.needed:
            if are_apart:
                why = (
                    f"their clocks are {at_least:.2f} s apart, so that another's lease may not be over. NTP has to "
                    f"correct them (`distlock doctor` says which)."
                )
            elif not fence:
                why = "nodes took their votes back, or went away, before they had agreed on a fence."
            elif early > quorum.timeout:
                why = (
                    f"their answers were read so late, twice, that their clocks cannot be compared within the lease of "
                    f"{claim.expire:g} s: to {at_most:.2f} s."
                )
            else:
                why = f"that took {now() - begun:.2f} s of the lease of {claim.expire:g} s."
            raise BackendUnavailable(f"A majority granted {claim.name!r}, but {why}")
        if len(answered) < quorum.needed:
            raise unavailable(questions, quorum.needed)
        return self._busy(len(granted), [each for each in answered if each not in granted])

    def _read_late(self, claim: Claim, questions: Sequence[Question]) -> bool:
        """Whether votes that suffice were read too late to compare their clocks well, as by a busy event loop.

        To vote again changes nothing at the nodes, and most likely reads them at once.
        """
        margin, (at_least, at_most) = (
            drift(claim.expire),
            self._quorum.apart([each for each in questions if gave(each)]),
        )
        return 2 * margin < at_most < math.inf and at_least <= margin + self._quorum.timeout

    async def _vote(
        self,
        claim: Claim,
        attempt: int,
        fence: int,
        *,
        wait: float | None = 0,
        ahead: int | str = APART_US,
    ) -> list[Question]:
        """A node may give another fence than this: where it has given a greater one, or its time is further behind."""
        head, expire = (claim.token, attempt), _ms(claim.expire)
        tail = (expire, fence or "", ahead, claim.holder)
        delay, teller = self._quorum.delay_us, self._quorum.teller() if wait != 0 else None

        def args(node: Node) -> Args:
            return (*head, node.who, delay, *tail, 1 if node is teller else "")

        within = min(self._quorum.timeout, claim.expire)
        enough = partial(self._is_decided, claim, now() + within)
        return await self._quorum.ask(VOTE, [claim.name], args, enough, within=within)

    def _is_decided(self, claim: Claim, until: float, questions: Sequence[Question]) -> bool:
        """Who has a majority is known, and its clocks agree; or waiting for them is no longer than for other nodes."""
        answered = [each for each in questions if each.answered]
        if len(answered) < self._quorum.needed:
            return False
        granted = [each for each in answered if each.reply[0]]
        if len(granted) >= self._quorum.needed:
            return self._quorum.apart(granted)[1] - drift(claim.expire) <= max(0.0, until - now())
        votes = Counter(each.reply[3] for each in answered if not each.reply[0])
        return max(votes.values()) >= self._quorum.needed

    async def _agree_on_fence(
        self, claim: Claim, attempt: int, granted: Sequence[Question], asked: list[list[Question]]
    ) -> int:
        """One that a majority knows before it is given: the next majority gives a greater one. 0: there is none.

        What is asked for it comes to ``asked``.
        """
        while True:
            fence, votes = Counter(each.reply[0] for each in granted).most_common(1)[0]
            if votes >= self._quorum.needed:
                return int(fence)
            highest = max(each.reply[0] for each in granted)
            asked.append(await self._vote(claim, attempt, highest, ahead=GIVEN))
            granted = [each for each in asked[-1] if gave(each)]
            if len(granted) < self._quorum.needed:
                return 0

    def _proposal(self) -> int:
        """The time of the nodes, as we last heard it: so all give the same fence. 0: each shall say its own."""
        ahead = [node.ahead_us for node in self._quorum.nodes if node.ahead_us is not None]
        return max(ahead) + int(now() * 1_000_000) if ahead else 0

    def _busy(self, granted: int, refused: Sequence[Question]) -> Busy:
        """When it may be had, and who has it; of this many votes for us and these refusals."""
        replies, needed = [each.reply for each in refused], self._quorum.needed
        token, votes = Counter(reply[3] for reply in replies).most_common(1)[0]
        ends = sorted(reply[2] / 1000 for reply in replies)
        remaining = ends[min(needed - granted, len(ends)) - 1]  # as many have to end as we lack
        _, now_us, _, _, since, holder = next(reply for reply in replies if reply[3] == token)
        who, held_for = holder.decode("utf-8", "replace"), max(0, now_us - since) / 1_000_000
        silent = len(self._quorum.nodes) - granted - len(replies)
        # Where nodes are silent, one who has just got too few votes may have to give them back, as we have.
        has_it = votes + silent >= needed and held_for >= self._quorum.timeout
        if votes < needed and not has_it:
            return Busy(min(remaining, DICE.uniform(*PAUSES[1:3])), remaining, None, who, held_for)
        # Not all who wait ask at the moment when it ends.
        return Busy(remaining + DICE.uniform(0, PAUSES[0]), remaining, Token(token.decode()).number, who, held_for)

    # To keep it and to give it back ----------------------------------------------------------------------------------

    async def extend(
        self, claims: Sequence[Claim], timeout: float | None = None
    ) -> list[Loss | BackendUnavailable | None]:
        for claim in claims:
            self._check_lease(claim.expire)
        tail = [value for claim in claims for value in (claim.token, _ms(claim.expire))]

        def all_kept(questions: Sequence[Question]) -> bool:
            # One that voted with others is waited for: a majority before it does not say whether it still does.
            if any(isinstance(each.node.no_vote, WrongQuorum) for each in questions):
                return False
            answers = [each.reply for each in questions if each.answered]
            kept = (len(_fences(given)) >= self._quorum.needed for given in zip(*answers, strict=True))
            return len(answers) >= self._quorum.needed and all(kept)

        names = [claim.name for claim in claims]
        # To connect to a node that hangs takes longer than a short lease: it is asked where the others are too few.
        heard = [node for node in self._quorum.nodes if not node.outage.silent]
        nodes = heard if self._quorum.patient and len(heard) >= self._quorum.needed else None
        questions = await self._quorum.ask(
            EXTEND, names, lambda node: (node.who, *tail), all_kept, nodes=nodes, within=timeout
        )
        self._quorum.raise_if_wrong()
        answered = self._quorum.answered(questions)
        given = zip(*(each.reply for each in answered), strict=True)
        return [self._loss_of(claim, its) for claim, its in zip(claims, given, strict=True)]

    def _loss_of(self, claim: Claim, given: Sequence[int]) -> Loss | BackendUnavailable | None:
        kept = len(_fences(given))
        if kept >= self._quorum.needed:
            return None
        if kept + len(self._quorum.nodes) - len(given) >= self._quorum.needed:  # the others may have it still
            return BackendUnavailable(f"{len(given)} nodes answered for {claim.name!r}, too few to know.")
        return self._why(given)

    async def release(self, claim: Claim, cooldown: float = 0.0, record: str | None = None) -> Loss | None:
        quorum = self._quorum

        def enough(questions: Sequence[Question]) -> bool:
            return [each.reply for each in questions if each.answered].count(0) >= quorum.needed

        questions = await self._undo(claim, "", quorum.nodes, enough, cooldown)
        answered = [each for each in questions if each.answered]
        # Sent twice, for the connection broke: if the first copy was done, the second finds nothing, or another's vote.
        unclear = [each for each in answered if each.repeated and LOSSES.get(each.reply) in ("expired", "taken")]
        done = sum(each.reply == 0 for each in answered)
        open_ = len(questions) - len(answered) + len(unclear)
        may_be_done = done + open_ >= quorum.needed
        # The nodes that did not answer release it later. But they do not keep it later.
        if done >= quorum.needed or (done and may_be_done and not unclear and not cooldown):
            self._released.append(claim.token)
            return None
        quorum.answered(questions)
        if may_be_done and claim.token not in self._released:
            if unclear:
                raise BackendUnavailable(f"The answers to the release of {claim.name!r} were lost.")
            if cooldown:
                raise BackendUnavailable(
                    f"{done} of {len(questions)} nodes keep {claim.name!r} for its cooldown, {quorum.needed} are "
                    f"needed: {said_instead(questions)}"
                )
        loss = self._why(each.reply for each in answered)
        return None if claim.token in self._released and loss != "revoked" else loss

    def _why(self, given: Iterable[int]) -> Loss:
        """Why a lease that has no majority is gone."""
        said = Counter(LOSSES.get(answer) for answer in given)
        if said["revoked"]:
            return "revoked"
        return "taken" if said["taken"] >= self._quorum.needed else "expired"

    async def _undo(
        self,
        claim: Claim,
        attempt: int | str,
        nodes: Sequence[Node],
        enough: Enough = every_answer,
        cooldown: float = 0.0,
        waits: bool = False,
    ) -> list[Question]:
        """Take back what these nodes have given, or may give yet; where one does not answer, as soon as it does."""
        head, teller = (claim.token, attempt, _ms(cooldown) if cooldown else 0), self._quorum.teller()
        for node in self._quorum.nodes:
            node.unsent.discard(claim.token)  # what waits for its connection still would come after this

        def args(node: Node) -> Args:
            return (*head, 1 if waits and node is teller else "")

        # After that it has ended by itself: a vote lives for `expire`, and the question was sent within the time-out.
        within = 0.0 if cooldown else claim.expire + self._quorum.timeout
        # The first node tells those who wait: it is sent to last.
        return await self._quorum.ask(RELEASE, [claim.name], args, enough, nodes=nodes[::-1], undo_within=within)

    # To look ---------------------------------------------------------------------------------------------------------

    async def inspect(self, names: Sequence[str] | None = None) -> list[LockInfo]:
        """What is held, as a majority shows it."""
        quorum = self._quorum
        given: dict[str, list[LockInfo]] = {}
        waiting, silent = Counter[str](), 0
        listed = await self._names() if names is None else names
        for first in range(0, len(listed), BATCH):
            some = listed[first : first + BATCH]
            answered = quorum.answered(await quorum.ask(INSPECT, some, lambda _: ()))
            silent = max(silent, len(quorum.nodes) - len(answered))  # they may have it, too
            for question in answered:
                waiting.update({name: line[5] for name, line in zip(some, question.reply, strict=True)})
                for line in infos(some, question.reply):
                    given.setdefault(line.name, []).append(line)
        lines = [_merged(its, quorum.needed - silent, waiting[name]) for name, its in given.items()]
        return sorted((line for line in lines if line is not None), key=lambda line: line.remaining)

    async def _names(self) -> list[str]:
        """What any node lists."""
        quorum, found = self._quorum, set[str]()
        nexts: dict[Node, tuple[str, int]] = dict.fromkeys(quorum.nodes, ("", 0))  # where each goes on
        while nexts:
            questions = await quorum.ask(NAMES, [], lambda node: (*nexts[node], NAMES_BATCH), nodes=list(nexts))
            if len(questions) == len(quorum.nodes):
                quorum.answered(questions)
            for question in questions:
                part = question.reply[1:] if question.answered else []
                found.update(ends(part))
                before, known = nexts.pop(question.node)
                if len(part) == 2 * NAMES_BATCH:
                    last = part[-1].decode()
                    nexts[question.node] = last, part[1::2].count(part[-1]) + (known if last == before else 0)
        return sorted(found)

    async def revoke(self, name: str, fence: int) -> bool:
        shown = self._quorum.answered(await self._quorum.ask(INSPECT, [name], lambda _: ()))
        lines = {each.node: line for each in shown for line in infos([name], each.reply)}
        holders = {line.holder for line in lines.values() if line.fence == fence}
        # A node that was not needed for the fence may have given the lock one of its own.
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


def _fences(given: Iterable[int]) -> list[int]:
    """Of what EXTEND answers: under which the lease is there still. What is no fence says why it is not."""
    return [answer for answer in given if answer not in LOSSES]


def _merged(given: Sequence[LockInfo], needed: int, waiters: int) -> LockInfo | None:
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
        waiters=waiters,  # each waits at one node, which may have forgotten the lock
        state=Counter(line.state for line in lines).most_common(1)[0][0],
    )


def _number(moment: float) -> int:
    """Of an attempt: more than that of every one before, for it is our clock."""
    return int(moment * 1_000_000)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
