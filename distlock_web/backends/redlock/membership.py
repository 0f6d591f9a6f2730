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
        question.error = _wrong(node, reply[2])


def _wrong(node: Node, stored: bytes) -> WrongQuorum:
    its_name, its_members, its_delay = stored_quorum(stored)
    name, members, delay = node.who.split(";")
    if (",".join(its_members), its_delay) != (members, float(delay)):
        return WrongQuorum(
            f"{node} votes with {','.join(its_members)} (restart_delay {its_delay:g} s), and here the nodes are "
            f"{members} ({delay} s). All processes have to name the same nodes; `distlock redlock adopt` makes a new "
            f"list count."
        )
    return WrongQuorum(f"{name} and {its_name} are one server, and would vote twice; or they have changed places.")


def stored_quorum(stored: bytes) -> tuple[str, list[str], float]:
    """Of a node that answers OTHER: its name, with whom it votes, and its delay in seconds."""
    try:
        name, members, delay = stored.decode("utf-8", "replace").rsplit(" ", 2)[0].split(";")
        return name, members.split(","), float(delay)
    except ValueError:  # not one of ours
        return "?", ["?"], 0.0


def raise_if_wrong(questions: Iterable[Question]) -> None:
    """One node of another list is enough: its other nodes may be a majority for somebody else."""
    for question in questions:
        if isinstance(question.error, WrongQuorum):
            raise question.error


def has_time(question: Question) -> bool:
    reply = question.reply
    return type(reply) is list and len(reply) > 1


def of_one_time(questions: Sequence[Question]) -> list[Question]:
    """The most of them whose clocks agree: one that was set ahead may have ended leases, or its own delay."""
    groups = [[each for each in questions if 0 <= each.reply[1] - first.reply[1] <= APART_US] for first in questions]
    return max(groups, key=len, default=[])


def has_no_memory(reply: Reply) -> bool:
    return type(reply) is list and reply[:1] == [UNKNOWN]
