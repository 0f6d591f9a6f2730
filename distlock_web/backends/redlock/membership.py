"""Which nodes make up a quorum, and since when each of them forgets nothing.

Each node stores who it is, with whom it votes, and the moment of its birth; every vote is asked for in these words, and
a node that stores others, or none, has no vote. So the vote itself notices a restart without data, a flush, a server
that was exchanged for another, one server under two names, and a process with another list of nodes. The birth is by
the clocks of the majority, so a node whose own clock was set cannot vote before its delay is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.errors import BackendUnavailable, ConfigurationError
from .asking import Question, Reply
from .node import Node

#: Seconds that the nodes' clocks may be apart: those that are further from the others have no vote.
APART = 1.0
APART_US = round(APART * 1_000_000)

UNKNOWN, OTHER, YOUNG = -1, -2, -3  #: what a node answers that has no vote


class WrongQuorum(ConfigurationError):
    """A node is another one than we think, or votes with others."""

    twice = False  #: two of our nodes are one server


def name_members(nodes: Sequence[Node], delay: float) -> None:
    members = ",".join(sorted(node.member for node in nodes))
    for node in nodes:
        node.who = f"{node.member};{members};{delay:g}"


def explain(question: Question) -> None:
    """An answer that the node has no vote is an error, which says why."""
    reply, node = question.reply, question.node
    if type(reply) is not list or not reply or type(reply[0]) is not int or reply[0] >= 0:
        return
    if reply[0] == UNKNOWN:
        question.error = BackendUnavailable(
            f"{node} has no memory of this quorum: it was set up, emptied or restarted."
        )
    elif reply[0] == YOUNG:
        question.error = BackendUnavailable(
            f"{node} may have forgotten locks, for it was set up, emptied or restarted: it votes again in "
            f"{reply[2] / 1_000_000:.0f} s."
        )
    else:
        question.error = _wrong(node, reply[2].decode("utf-8", "replace"))


def _wrong(node: Node, stored: str) -> WrongQuorum:
    its_name, its_members, its_delay = [*stored.rpartition(" ")[0].split(";"), "", "", ""][:3]
    name, members, delay = node.who.split(";")
    if (its_members, its_delay) != (members, delay):
        return WrongQuorum(
            f"{node} votes with {its_members} (restart_delay {its_delay} s), and here the nodes are {members} "
            f"({delay} s). All processes have to name the same nodes; `distlock redlock adopt` makes a new list count."
        )
    wrong = WrongQuorum(f"{name} and {its_name} are one server, and would vote twice; or they have changed places.")
    wrong.twice = True
    return wrong


def raise_if_wrong(questions: Iterable[Question], needed: int) -> None:
    """A list of nodes that is wrong would be asked for ever: said at once, where it matters."""
    wrong = [each.error for each in questions if isinstance(each.error, WrongQuorum)]
    if wrong and (len(wrong) >= needed or any(error.twice for error in wrong)):
        raise next((error for error in wrong if error.twice), wrong[0])


def has_time(question: Question) -> bool:
    reply = question.reply
    return type(reply) is list and len(reply) > 1


def of_one_time(questions: Sequence[Question]) -> list[Question]:
    """The most of them whose clocks agree: one that was set ahead may have ended leases, or its own delay."""
    groups = [[each for each in questions if 0 <= each.reply[1] - first.reply[1] <= APART_US] for first in questions]
    return max(groups, key=len, default=[])


def has_no_memory(reply: Reply) -> bool:
    return type(reply) is list and reply[:1] == [UNKNOWN]


def stored_members(stored: bytes) -> list[str]:
    """With whom a node votes that answers OTHER."""
    return stored.decode("utf-8", "replace").split(";")[1].split(",")
