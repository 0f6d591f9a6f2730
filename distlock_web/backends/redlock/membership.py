"""Which nodes make up a quorum, and since when each of them forgets nothing.

Each node stores who it is, with whom it votes, and the moment of its birth; every vote is asked for in these words, and
a node that stores others, or none, has no vote. So the vote itself notices a restart without data, a flush, a server
that was exchanged for another, one server under two names, and a process with another list of nodes. The birth is by
the clocks of the majority, so a node whose own clock was set cannot vote before its delay is over.
"""

from __future__ import annotations

from typing import Any

from ...core.errors import BackendUnavailable, ConfigurationError, DistLockError
from .node import Node

#: µs that the nodes' clocks may be apart: those that are further from the others have no vote.
APART_US = 1_000_000

FORGOT, OTHER, YOUNG = -1, -2, -3  #: what a node answers that has no vote


class Forgot(BackendUnavailable):
    """A node has no memory of the quorum: somebody has to tell it who it is."""


class WrongQuorum(ConfigurationError):
    """A node is another one than we think, or votes with others."""


def no_vote(node: Node, reply: Any) -> DistLockError | None:
    """Why the node that answers so has no vote. None: it has."""
    if type(reply) is not list or not reply or type(reply[0]) is not int or reply[0] >= 0:
        return None
    if reply[0] == FORGOT:
        return Forgot(f"{node} has no memory of this quorum: it was set up, emptied or restarted.")
    if reply[0] == YOUNG:
        return BackendUnavailable(
            f"{node} may have forgotten locks, for it was set up, emptied or restarted: it votes again in "
            f"{reply[2] / 1_000_000:.0f} s."
        )
    its_name, its_members, its_delay = stored_quorum(reply[2])
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
