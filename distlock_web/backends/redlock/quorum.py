"""The nodes, asked together: what is the same for every verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeAlias

from ...core.errors import BackendUnavailable, ConfigurationError
from ..redis.scripts import NAMES, PackedKeys, Script, pack_keys
from .asking import Enough, Question, ask, every_answer, unavailable
from .membership import APART_US, OTHER, explain, has_no_memory, has_time, of_one_time, stored_quorum
from .node import Node, waiting
from .scripts import EXTEND, FOUND, INSPECT

Args: TypeAlias = "tuple[str | int, ...]"


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
        self._blocking = blocking  #: asks in this thread
        self._patient = patient  #: for renewals: all nodes are asked, also those that count as silent

    async def ask(
        self,
        script: Script,
        names: Sequence[str],
        args: Callable[[Node], Args],
        enough: Enough = every_answer,
        *,
        nodes: Sequence[Node] | None = None,
        within: float | None = None,
    ) -> list[Question]:
        nodes = self.nodes if nodes is None else nodes
        if not nodes:
            return []
        keys = _keys(script, nodes[0], names)
        questions = [Question(node, script, keys, args(node)) for node in nodes]
        time = self.timeout if within is None else within
        await ask(questions, enough, time, blocking=self._blocking, patient=self._patient)
        return questions

    def answered(self, questions: Sequence[Question]) -> list[Question]:
        """Those that have an answer; raises if they are too few."""
        answered = [each for each in questions if each.answered]
        if len(answered) < self.needed:
            raise unavailable(questions, self.needed)
        return answered

    # Membership and birth ------------------------------------------------------------------------------------------

    async def found(self, questions: Sequence[Question], *, by_hand: bool = False) -> bool:
        """Tell nodes without a memory who they are, and that it begins now by the clocks of the majority.

        By itself only where a majority remembers this list of nodes, or where all answer, and none has another list.
        Answers whether one was told.
        """
        nodes = [each.node for each in questions if has_no_memory(each.reply)]
        heard = [each for each in questions if has_time(each)]
        if not nodes or any(each.reply[0] == OTHER for each in heard):
            return False
        # Else two lists of nodes could each win a node that has forgotten, while those that remember cannot be heard.
        remember = len(heard) - len(nodes)
        if self.restart_delay and not (by_hand or remember >= self.needed or len(heard) == len(self.nodes)):
            return False
        times = [each.reply[1] for each in of_one_time(heard)]
        if len(times) < self.needed:
            return False
        told = await self.ask(FOUND, [], lambda node: (node.who, int(median(times)), APART_US, "", 0), nodes=nodes)
        return any(map(gave, told))

    async def prepare(self) -> str:
        """See ``RedlockBackend.prepare``."""
        looked = await self.look()
        new = sum(has_no_memory(each.reply) for each in looked)
        await self.found(looked, by_hand=True)
        looked = await self.look()
        for question in looked:
            explain(question)
        self.answered(looked)
        done = f"{new} of {len(looked)} nodes were new; they vote in {self.delay_us / 1e6:g} s." if new else "ready."
        return " ".join([done, *(str(each.error) for each in looked if each.error is not None)])

    async def look(self) -> list[Question]:
        """Who the nodes are, and what time it is there."""
        return await self.ask(FOUND, [], lambda node: (node.who, 0, 0, "look", 0))

    async def adopt(self) -> str:
        """See ``RedlockBackend.adopt``. First those that vote with others until now: so at no time two lists count."""
        looked = await self.look()
        if not all(question.answered for question in looked):
            raise unavailable(looked, len(self.nodes))
        times = [each.reply[1] for each in of_one_time(looked)]
        if len(times) < len(looked):
            raise BackendUnavailable(
                "The clocks of the nodes are apart: set them (`distlock doctor` says by how much)."
            )
        changed = [each for each in looked if each.reply[0] == OTHER]
        later = max((self._check_change(each) for each in changed), default=0)
        new = [each.node for each in looked if each not in changed]
        args = (int(median(times)), APART_US, "adopt", later)
        for nodes in ([each.node for each in changed], new):
            told = await self.ask(FOUND, [], lambda node: (node.who, *args), nodes=nodes)
            if not all(map(gave, told)):
                raise unavailable(told, len(told))
        seconds = (self.delay_us + later) / 1e6
        return f"{len(changed)} of {len(self.nodes)} nodes voted with others; all vote in {seconds:g} s."

    def _check_change(self, question: Question) -> int:
        """µs by which a lease of the list that this node stores may outlive ``restart_delay``."""
        _, stored, delay = stored_quorum(question.reply[2])
        members = {node.member for node in self.nodes}
        if len(set(stored) - members) > len(stored) // 2:
            raise ConfigurationError(
                f"{question.node} votes with {', '.join(sorted(stored))}: more than half of them are not in the new "
                f"list, and would go on to count. Exchange one node at a time."
            )
        if not (delay and self.restart_delay):
            raise ConfigurationError(
                f"restart_delay is 0, so a lock of the old list may be of any length. Stop all processes that use "
                f"these nodes, and delete {question.node.quorum_key!r} on each node."
            )
        return max(0, round((delay - self.restart_delay) * 1_000_000))


def gave(question: Question) -> bool:
    """Of an answer that begins with a number: it is what was asked for."""
    return question.answered and bool(question.reply[0] > 0)


def _keys(script: Script, node: Node, names: Sequence[str]) -> PackedKeys:
    """The keys of all nodes: they have the same names there."""
    if script is INSPECT:
        return pack_keys(*(key for name in names for key in (name, waiting(name))))
    if script is NAMES:
        return pack_keys(node.index)
    if script is EXTEND:
        return pack_keys(node.quorum_key, node.index, *names)
    return node.keys(*names)
