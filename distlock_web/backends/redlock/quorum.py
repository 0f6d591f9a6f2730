"""The nodes, asked together: what is the same for every verb, and who they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from ...core.errors import BackendUnavailable, ConfigurationError
from ...core.runtime import now
from ..redis.scripts.calls import Script
from .asking import Args, Enough, Question, ask_in_tasks, ask_in_thread, every_answer, unavailable
from .node import APART_US, FORGOT, OTHER, Forgot, Node, WrongQuorum, no_vote, stored_quorum
from .scripts import FOUND


class Quorum:
    """All nodes, for callers of one kind. More than half of them have to agree."""

    def __init__(
        self, nodes: Sequence[Node], restart_delay: float, *, blocking: bool = True, patient: bool = False
    ) -> None:
        self.nodes = nodes
        self.needed = len(nodes) // 2 + 1
        self.timeout = max(node.timeout for node in nodes)
        self.restart_delay = restart_delay
        #: A birth is known to within the time that clocks may be apart.
        self.delay_us = round(restart_delay * 1_000_000) + APART_US if restart_delay else 0
        self.patient = patient  #: for renewals: no caller waits for them, and silent nodes are asked, too
        self._blocking = blocking  #: asks in this thread

    async def ask(
        self,
        script: Script,
        names: Sequence[str],
        args: Callable[[Node], Args],
        enough: Enough = every_answer,
        *,
        nodes: Sequence[Node] | None = None,
        within: float | None = None,
        undo_within: float = 0.0,
    ) -> list[Question]:
        """Ask the nodes, all of them unless said otherwise.

        ``undo_within``: a node that does not answer is asked as soon as it does, for so many seconds.
        """
        nodes = self.nodes if nodes is None else nodes
        if not nodes:
            return []
        keys = nodes[0].keys(*names)  # they have the same names on every node
        questions = [Question(node, script, keys, args(node), undo_within) for node in nodes]
        time = self.timeout if within is None else within
        if self._blocking:
            ask_in_thread(questions, enough, time, self.patient)
        else:
            await ask_in_tasks(questions, enough, time)
        return questions

    def teller(self) -> Node:
        """The node that tells those who wait of a release: the first that answers."""
        return next((node for node in self.nodes if not node.outage.silent), self.nodes[0])

    def answered(self, questions: Sequence[Question]) -> list[Question]:
        """Those that have an answer; raises if they are too few."""
        answered = [each for each in questions if each.answered]
        if len(answered) < self.needed:
            raise unavailable(questions, self.needed)
        return answered

    def apart(self, votes: Sequence[Question]) -> tuple[float, float]:
        """Seconds that the clocks of the majority that agrees best are apart: at least, and at most.

        No clock is read at the same moment as another: the time that the answers took is in the second, our own
        lateness with it.
        """
        clocks = [vote.ahead for vote in votes]
        return max(0.0, self._spread([(most, least) for least, most in clocks])), self._spread(clocks)

    def _spread(self, clocks: Sequence[tuple[float, float]]) -> float:
        """From the first of one clock to the last of another, so that a majority lies between; in seconds."""
        clocks, spreads = sorted(clocks), []
        for first in range(len(clocks) - self.needed + 1):
            lasts = sorted([last for _, last in clocks[first:]])
            spreads.append(lasts[self.needed - 1] - clocks[first][0])
        return min(spreads, default=math.inf) / 1_000_000

    def of_one_time(self, questions: Sequence[Question]) -> list[Question]:
        """The most of them whose clocks agree well enough to say when a node was born."""
        if not self.restart_delay:
            return list(questions)
        groups = [
            [each for each in questions if 0 <= each.reply[1] - first.reply[1] <= APART_US] for first in questions
        ]
        return max(groups, key=len, default=[])

    # Membership and birth ------------------------------------------------------------------------------------------

    def raise_if_wrong(self) -> None:
        """One node of another list is enough: its other nodes may be a majority for another caller."""
        for node in self.nodes:
            if isinstance(node.no_vote, WrongQuorum):
                raise node.no_vote

    async def found(self, *, by_hand: bool = False) -> bool:
        """Tell nodes without a memory who they are, and that it begins now by the clocks of the majority.

        By itself only where a majority remembers this list of nodes; or where all answer, their clocks agree, and none
        has another list. Answers whether one was told.
        """
        forgotten = [node for node in self.nodes if isinstance(node.no_vote, Forgot)]
        if not (by_hand or any(now() >= node.unfounded_until for node in forgotten)):
            return False
        looked = await self.look()
        for each in looked:
            if not each.answered and each.node in forgotten:
                each.node.not_founded(_why_not(each, 0.0))
        heard = [each for each in looked if each.answered]
        for each in heard:
            if each.reply[0] > 0:
                each.node.no_vote, each.node.unfounded = None, ""  # another caller has told it
        forgot = [each.node for each in heard if each.reply[0] == FORGOT]
        agreed = self.of_one_time(heard)
        born = int(median([each.reply[1] for each in agreed] or [0]))
        # Else two lists of nodes could each win a node that has forgotten, while those that remember cannot be heard;
        # and nodes that come back with a clock that is behind, and set then, would be old enough at once.
        remembered = by_hand or len(heard) - len(forgot) >= self.needed or not self.restart_delay
        others = any(each.reply[0] == OTHER for each in heard)
        if others or len(agreed) < (self.needed if remembered else len(self.nodes)):
            return False
        told = await self.ask(FOUND, [], lambda node: (node.who, born, APART_US, ""), nodes=forgot)
        ahead = {each.node: (each.reply[1] - born) / 1_000_000 for each in heard}
        for each in told:
            if gave(each):
                each.node.unfounded = ""
            elif not each.answered or each.reply[0] == 0:
                each.node.not_founded(_why_not(each, ahead[each.node]))
            each.node.no_vote = no_vote(each.node, each.reply)
        return any(map(gave, told))

    async def look(self) -> list[Question]:
        """Who the nodes are, and what time it is there. Raises where two of them are databases of one server."""
        looked = await self.ask(FOUND, [], lambda node: (node.who, 0, 0, "look"))
        by_run: dict[bytes, Node] = {}
        for node, run in ((each.node, each.reply[3]) for each in looked if each.answered and each.reply[3] != b"-"):
            if run in by_run:
                raise WrongQuorum(f"{by_run[run].member} and {node.member} are one server, and would vote twice.")
            by_run[run] = node
        return looked

    async def prepare(self) -> str:
        """See ``RedlockBackend.prepare``."""
        new = sum(each.answered and each.reply[0] == FORGOT for each in await self.look())
        await self.found(by_hand=True)
        looked = await self.look()
        for each in looked:
            each.error = each.error or no_vote(each.node, each.reply)
        self.answered(looked)
        done = f"{new} of {len(looked)} nodes were new; they vote in {self.delay_us / 1e6:g} s." if new else "ready."
        return " ".join([done, *(str(each.error) for each in looked if each.error is not None)])

    async def adopt(self) -> str:
        """See ``RedlockBackend.adopt``. First those that vote with others until now: so at no time two lists count."""
        looked = await self.look()
        if not all(question.answered for question in looked):
            raise unavailable(looked, len(self.nodes))
        if len(self.of_one_time(looked)) < len(looked):
            raise BackendUnavailable(
                "The clocks of the nodes differ: correct them (`distlock doctor` says by how much)."
            )
        changed = [each for each in looked if each.reply[0] == OTHER]
        new = [each.node for each in looked if each not in changed]
        begins = int(median(each.reply[1] for each in looked))
        for each in looked:
            if each.reply[0] != FORGOT:
                self._check_change(each)
        args = (begins, APART_US, "adopt")
        for nodes in ([each.node for each in changed], new):
            told = await self.ask(FOUND, [], lambda node: (node.who, *args), nodes=nodes)
            if not all(map(gave, told)):
                raise unavailable(told, len(told))
        return f"{len(changed)} of {len(self.nodes)} nodes voted with others; all vote in {self.delay_us / 1e6:g} s."

    def _check_change(self, question: Question) -> None:
        """From the list that this node stores."""
        _, stored, delay = stored_quorum(question.reply[2])
        members = {node.member for node in self.nodes}
        if len(set(stored) - members) > len(stored) // 2:
            raise ConfigurationError(
                f"{question.node} votes with {', '.join(sorted(stored))}: more than half of them are not in the new "
                f"list, and could still form a majority. Exchange one node at a time."
            )
        if question.reply[0] == OTHER and (not delay or self.restart_delay < delay):
            raise ConfigurationError(
                f"A lock of the old list may be longer than the new restart_delay, {self.restart_delay:g} s: the old "
                f"one is {delay:g} s, where 0 allows any length. Stop all processes that use these nodes, and delete "
                f"{question.node.quorum_key!r} on each node."
            )


def _why_not(told: Question, ahead: float) -> str:
    """Why this node was not founded, whose clock was so many seconds ahead of the others' when it was looked at."""
    if not told.answered:
        return str(told.error or "it did not answer in time").rstrip(".")
    if abs(ahead) * 1_000_000 > APART_US:
        where = "ahead of" if ahead > 0 else "behind"
        return f"its clock is {abs(ahead):.0f} s {where} the others', and has to be corrected"
    return "the message came late"


def gave(question: Question) -> bool:
    """Of an answer that begins with a number: it is what was asked for."""
    return question.answered and bool(question.reply[0] > 0)
