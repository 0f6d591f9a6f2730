"""What is set up on the nodes of a quorum so that locks will be lost: ``distlock doctor``'s findings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.backend import drift
from ...core.errors import DistLockError
from ...core.findings import Finding
from ..redis.diagnose import diagnose as of_server
from ..redis.diagnose import server_time
from .node import Node


def diagnose(nodes: Sequence[Node], restart_delay: float, expire: float) -> list[Finding]:
    """What is wrong with these nodes, each asked for itself. Raises ``DistLockError`` if none of them answers."""
    found: list[Finding] = []
    silent: dict[str, DistLockError] = {}
    ahead: dict[str, tuple[float, float]] = {}
    for node in nodes:
        try:
            ahead[str(node)] = _ahead(node)
            found += _of_node(node, restart_delay)
        except DistLockError as error:
            silent[str(node)] = error
    if len(silent) == len(nodes):
        raise next(iter(silent.values()))
    return [*found, *_silent(silent, len(nodes)), *_clocks(ahead, expire)]


def _of_node(node: Node, restart_delay: float) -> Iterator[Finding]:
    for finding in of_server(node.address):
        # A node that comes back empty does not vote until the leases of before are over: it need not remember.
        remembered = restart_delay > 0 and finding.code in ("DL102", "DL103")
        # The locks of a quorum survive a node by the others, not by its replicas.
        if not remembered and finding.code != "DL104":
            yield replace(finding, problem=f"{node}: {finding.problem}")


def _silent(silent: Mapping[str, DistLockError], nodes: int) -> Iterator[Finding]:
    spare = (nodes - 1) // 2 - len(silent)
    for error in silent.values():
        yield Finding(
            "DL201",
            "error" if spare < 0 else "warning",
            f"A node does not answer: {error}",
            f"Of {nodes} nodes {len(silent)} are out: " + (f"{spare} more may fail." if spare >= 0 else "no majority."),
            "The server, the network, or LOCATION.",
        )


def _clocks(ahead: Mapping[str, tuple[float, float]], expire: float) -> Iterator[Finding]:
    if not ahead:
        return
    first, last = min(ahead, key=lambda node: ahead[node][1]), max(ahead, key=lambda node: ahead[node][0])
    apart = (sum(ahead[last]) - sum(ahead[first])) / 2
    if ahead[last][0] - ahead[first][1] > drift(expire):  # surely
        yield Finding(
            "DL202",
            "warning",
            f"The clocks of the nodes are {apart:.1f} s apart: {last} is ahead of {first}.",
            f"A lease of {expire:g} s allows for {drift(expire):.3g} s. Locks that need both nodes are taken later, or "
            "not at all; and when somebody corrects a clock, leases end early or late on that node.",
            "NTP on every node, which corrects a clock by its speed and not by a step.",
        )


def _ahead(node: Node) -> tuple[float, float]:
    """Seconds that the node's clock is ahead of ours, at least and at most."""
    before = time.time()
    at_node = server_time(node.address)
    return at_node - time.time(), at_node - before
