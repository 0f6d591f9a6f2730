"""The nodes, asked together: what is the same for every verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeAlias

from ...core.errors import BackendUnavailable, ConfigurationError
from ..redis.scripts import NAMES, PackedKeys, Script, pack_keys
from .asking import Enough, Question, ask, every_answer, unavailable
from .membership import APART_US, OTHER, explain, has_no_memory, has_time, of_one_time, raise_if_wrong, stored_members
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

    async def found(self, questions: Sequence[Question]) -> bool:
        """Tell nodes without a memory who they are, and that it begins now by the majority's clocks. False: no need."""
        nodes = [each.node for each in questions if has_no_memory(each.reply)]
        if not nodes:
            return False
        times = [each.reply[1] for each in of_one_time([each for each in questions if has_time(each)])]
        if len(times) < self.needed:
            return False
        told = await self.ask(FOUND, [], lambda node: (node.who, int(median(times)), APART_US, ""), nodes=nodes)
        return any(map(gave, told))

    async def prepare(self) -> str:
        """See ``RedlockBackend.prepare``."""
        looked = await self.look()
        new = sum(has_no_memory(each.reply) for each in looked)
        await self.found(looked)
        looked = await self.look()
        for question in looked:
            explain(question)
        raise_if_wrong(looked, self.needed)
        self.answered(looked)
        done = f"{new} of {len(looked)} nodes were new; they vote in {self.delay_us / 1e6:g} s." if new else "ready."
        return " ".join([done, *(str(each.error) for each in looked if each.error is not None)])

    async def look(self) -> list[Question]:
        """Who the nodes are, and what time it is there."""
        return await self.ask(FOUND, [], lambda node: (node.who, 0, 0, "look"))

    async def adopt(self) -> str:
        """See ``RedlockBackend.adopt``. First those that vote with others until now: so at no time two lists count."""
        looked = await self.look()
        for question in looked:
            if not question.answered:
                raise unavailable(looked, len(self.nodes))
        times = [each.reply[1] for each in of_one_time(looked)]
        if len(times) < len(looked):
            raise BackendUnavailable(
                "The clocks of the nodes are apart: set them (`distlock doctor` says by how much)."
            )
        members = {node.member for node in self.nodes}
        for question in looked:
            if question.reply[0] == OTHER:
                before = set(stored_members(question.reply[2]))
                if len(before - members) > len(before) // 2:
                    raise ConfigurationError(
                        f"{question.node} votes with {', '.join(sorted(before))}: more than half of them are not in "
                        f"the new list, and would go on to count. Exchange one node at a time."
                    )
        changed = [each.node for each in looked if each.reply[0] == OTHER]
        for nodes in (changed, [node for node in self.nodes if node not in changed]):
            told = await self.ask(
                FOUND, [], lambda node: (node.who, int(median(times)), APART_US, "adopt"), nodes=nodes
            )
            if not all(map(gave, told)):
                raise unavailable(told, len(told))
        return f"{len(changed)} of {len(self.nodes)} nodes voted with others; all vote in {self.delay_us / 1e6:g} s."


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
