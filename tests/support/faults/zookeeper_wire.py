"""Where a request and an answer end on the wire of ZooKeeper."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from .wire import Message

_KINDS = {
    -11: "goodbye", 1: "create", 2: "delete", 3: "exists", 4: "get", 5: "set", 8: "children", 9: "sync",
    12: "children", 13: "check", 14: "change", 19: "container", 100: "auth", 101: "watches",
}  # fmt: skip
_EVENT, _PING = -1, -2


class ZooKeeper:
    """Four bytes of length. Requests follow each other without waiting, and are answered in their order.

    Heartbeats, of which there are some by chance, are no messages that count: they have no kind.
    """

    def __init__(self) -> None:
        self._asked, self._answered = b"", b""
        self._begun = False
        self._kinds = deque[str]()

    def requests(self, data: bytes) -> Sequence[Message]:
        self._asked += data
        return [self._asks(frame) for frame in self._frames("_asked")]

    def _asks(self, frame: bytes) -> Message:
        kind = "connect"
        if self._begun:
            xid, type_of = _integer(frame, 4), _integer(frame, 8)
            kind = "" if xid == _PING else _KINDS.get(type_of, f"request{type_of}")
        self._begun = True
        self._kinds.append(kind)
        return Message(kind, frame)

    def answers(self, data: bytes) -> Sequence[Message]:
        self._answered += data
        return [self._answers(frame) for frame in self._frames("_answered")]

    def _answers(self, frame: bytes) -> Message:
        if self._kinds and self._kinds[0] != "connect" and _integer(frame, 4) == _EVENT:
            return Message("event", frame, answered=False)
        return Message(self._kinds.popleft(), frame) if self._kinds else Message("event", frame, answered=False)

    def _frames(self, where: str) -> Iterator[bytes]:
        while True:
            data: bytes = getattr(self, where)
            length = 4 + int.from_bytes(data[:4], "big")
            if len(data) < 4 or len(data) < length:
                return
            setattr(self, where, data[length:])
            yield data[:length]


def _integer(frame: bytes, at: int) -> int:
    return int.from_bytes(frame[at : at + 4], "big", signed=True)
