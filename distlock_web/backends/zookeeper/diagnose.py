"""What is set up in an ensemble so that locks will be lost: ``distlock doctor``'s findings."""

from __future__ import annotations

from collections.abc import Iterator

from kazoo.exceptions import NoNodeError

from ...core.findings import Finding
from .session import Session

#: Where an ensemble keeps who belongs to it; readable by everybody.
CONFIG = "/zookeeper/config"


def diagnose(session: Session) -> list[Finding]:
    """What is wrong with this ensemble. Raises ``DistLockError``."""
    chroot = session.address.chroot
    # Below a chroot the node of the configuration cannot be named.
    answers = session.send(lambda client: client.get_async("/" if chroot else CONFIG))
    found = list(_session(session))
    if not chroot and not isinstance(answers[0], NoNodeError):
        found += _members(bytes(answers[0][0]).decode("utf-8", "replace"))
    return found


def _members(configured: str) -> Iterator[Finding]:
    """From lines such as ``server.1=10.0.0.1:2888:3888:participant``; one that is alone has none."""
    servers = [line for line in configured.splitlines() if line.startswith("server.")]
    voting = sum(":observer" not in line for line in servers)
    if voting <= 1:
        yield Finding(
            "DL401",
            "warning",
            "ZooKeeper is one server, not an ensemble.",
            "While it is down no lock can be taken; if its disk is lost, so are the locks.",
            "Three servers, or five, each on its own machine.",
        )
    elif voting % 2 == 0:
        yield Finding(
            "DL402",
            "info",
            f"{voting} servers vote.",
            f"The majority is {voting // 2 + 1}: with one server fewer, as many could fail.",
            "An odd number of servers.",
        )


def _session(session: Session) -> Iterator[Finding]:
    granted, asked = session.granted, session.address.session_timeout
    if granted < asked * 0.99:
        yield Finding(
            "DL403",
            "warning",
            f"The servers grant a session of {granted:g} s; session_timeout asks for {asked:g} s.",
            "Leases of more than two thirds of it are written as persistent nodes: one write more for each.",
            "maxSessionTimeout on the servers, or a session_timeout that they allow.",
        )
