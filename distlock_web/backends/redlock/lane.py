"""One connection to each node, borrowed together: a question is written to all of them before an answer is read.

Who has heard enough leaves the rest to be read with the next question on the same lane. What is asked there next comes
to each node after that: a release never overtakes its acquisition.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from ...core.errors import DistLockError
from ...core.runtime import now
from ..redis.transport.pool import Reply
from .node import LAG, Node
from .quorum import wait_for_data
from .wire import NodeWire, Question

#: Seconds after which a lane that nobody has used looks whether its connections have ended meanwhile.
IDLE = 0.1


class Lane:
    """For one thread at a time: ``with lane:`` gives it back, or lets go of it where anything goes wrong."""

    __slots__ = ("__weakref__", "_lanes", "_timeout", "_used_at", "_wires", "batch")

    def __init__(self, lanes: Lanes, batch: object) -> None:
        self._lanes = lanes
        self._wires: dict[Node, NodeWire] = {}
        self._timeout = 0.0  #: seconds that the slowest of the nodes may take
        self._used_at = now()
        self.batch = batch

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._used_at = now()
            self._lanes.give_back(self)
        else:
            self._lanes.discard(self)

    def ready(self, nodes: Sequence[Node], *, lagging: bool = False) -> list[Node]:
        """Those that can be asked now, in this order; also those that have not answered for a while, if ``lagging``."""
        moment, wires = now(), self._wires
        if moment - self._used_at > IDLE:
            self._drop_ended()
        found = []
        for node in nodes:
            if node.down_since is None:
                wire = wires.get(node)
                if wire is None or wire.stale:
                    usable = self._open(node)
                elif wire.owed and moment - wire.since > LAG:
                    usable = self._catch_up(wire, moment) and (lagging or not wire.owed)
                else:
                    usable = True
                if usable:
                    found.append(node)
        return found

    def _open(self, node: Node) -> bool:
        if node in self._wires:
            self._drop(self._wires[node])
        try:
            self._wires[node] = node.open_wire()
            self._timeout = max(self._timeout, node.timeout)
        except DistLockError:
            return False
        return True

    def _drop_ended(self) -> None:
        """A server, or what stands in between, has closed what was idle: a question would be sent there for nothing."""
        for wire in list(self._wires.values()):
            if wire.owed:
                self._catch_up(wire, now())
        idle = {wire.descriptor: wire for wire in self._wires.values() if not wire.owed}
        for descriptor in wait_for_data(idle, 0.0):
            self._drop(idle[descriptor])

    def _catch_up(self, wire: NodeWire, moment: float) -> bool:
        """Read what nobody has read since; False: the node does not answer."""
        try:
            if not wire.read() and moment - wire.since > wire.node.timeout:
                raise _silence(wire)
        except OSError as error:
            self._lose(wire, error)
            return False
        return True

    def ask(self, nodes: Sequence[Node], packed: bytes, question: Question) -> Iterator[tuple[Node, Reply]]:
        """Send this to nodes that are ``ready``, and give each answer when it comes."""
        moment = now()
        for node in nodes:
            wire = self._wires[node]
            try:
                wire.send(packed, question, moment)
            except OSError as error:
                self._lose(wire, error)
        return self.answers(question)

    def answers(self, question: Question) -> Iterator[tuple[Node, Reply]]:
        """Those that are still to come. A node that does not answer in time is down."""
        wires = {wire.descriptor: wire for wire in self._wires.values() if question in wire.owed}
        until = now() + self._timeout
        while wires:
            ready = wait_for_data(wires, max(0.0, until - now()))
            if not ready:
                for wire in wires.values():
                    self._lose(wire, _silence(wire))
                return
            for descriptor in ready:
                wire = wires[descriptor]
                try:
                    answers = wire.read()
                except OSError as error:
                    self._lose(wire, error)
                    del wires[descriptor]
                    continue
                for asked, reply in answers:
                    if asked is question:
                        del wires[descriptor]
                        yield wire.node, reply

    def owing(self, question: Question) -> list[Node]:
        """The nodes that have not answered this yet, as far as was read. From any thread."""
        return [wire.node for wire in list(self._wires.values()) if question in wire.owed]

    def catch_up(self) -> None:
        """Read what has been answered, unless somebody else uses this lane, and reads it."""
        if self._lanes.take_this(self):
            with self:
                for wire in list(self._wires.values()):
                    if wire.owed:
                        self._catch_up(wire, now())

    def _lose(self, wire: NodeWire, error: OSError) -> None:
        self._drop(wire)
        if not wire.stale:
            wire.node.ended(error)

    def _drop(self, wire: NodeWire) -> None:
        del self._wires[wire.node]
        wire.close()
        wire.node.undo(wire)

    def close(self) -> None:
        for wire in list(self._wires.values()):
            self._drop(wire)


def _silence(wire: NodeWire) -> TimeoutError:
    return TimeoutError(f"no answer within {wire.node.timeout:g} s")


class Lanes:
    """At most ``limit``. One whose thread was interrupted anywhere closes itself and leaves its place: see the pool."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: deque[Lane] = deque()
        self._open: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._opening = threading.RLock()  # reentrant: garbage that is collected inside may release a lock of its own
        self._batch = object()  # of the lanes that are opened now

    def take(self) -> Lane | None:
        """One that nobody uses; None: all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        with self._opening:
            if len(self._open) >= self._limit:
                return None
            lane = Lane(self, self._batch)
            self._open.add(lane)
        return lane

    def take_this(self, lane: Lane) -> bool:
        """Take this one; False: somebody uses it."""
        try:
            self._idle.remove(lane)
        except ValueError:
            return False
        return True

    def give_back(self, lane: Lane) -> None:
        if lane.batch is not self._batch:
            self.discard(lane)
            return
        self._idle.append(lane)
        if lane.batch is not self._batch:  # closed meanwhile, by one that may have come before it was idle
            self._close_idle()

    def discard(self, lane: Lane) -> None:
        self._open.discard(lane)
        lane.close()

    def close(self) -> None:
        """Let go of all: of those in use when they are given back."""
        self._batch = object()
        self._close_idle()

    def _close_idle(self) -> None:
        while (lane := self._pop()) is not None:
            self.discard(lane)

    def _pop(self) -> Lane | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None
