"""What a lane is made of: a connection to one node, and what was asked on it."""

from __future__ import annotations

from typing import Any

from ...core.backend import Claim
from ..redis.transport.address import DriverConnection
from ..redis.transport.wire import Wire


class Question:
    """What was sent to several nodes, over one lane."""

    __slots__ = ("claim", "lane", "undo")

    def __init__(self, claim: Claim, lane: Any, undo: bool = False) -> None:
        self.claim = claim
        self.lane = lane
        self.undo = undo  #: nothing of the claim shall be left: a node whose answer does not come is told so later


class NodeWire(Wire[Question]):
    __slots__ = ("node", "stale")

    def __init__(self, node: Any, connection: DriverConnection) -> None:
        super().__init__(connection)
        self.node = node
        self.stale = False  #: the node went down: this would break, too, and look as if it went down again
