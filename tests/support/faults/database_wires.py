"""Where a request and an answer end on the wires of PostgreSQL and of MySQL."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from .wire import Message

_WORDS = re.compile(rb"[A-Za-z]+")
_TABLE = re.compile(rb"\bdistlock_(\w+)|\b(?:FROM|INTO|UPDATE)\s+([a-z]\w+)(?!\w*\()", re.IGNORECASE)


def in_words(statement: bytes) -> str:
    """What a statement does, short enough for a name: ``update-lease``, ``commit``."""
    words = [word.decode().lower() for word in _WORDS.findall(statement[:40])[:1]]
    table = _TABLE.search(statement)
    if b" FOR UPDATE" in statement.upper():
        words = ["lock"]
    return "-".join([*words, *([(table[1] or table[2]).decode()] if table else [])]) or "statement"


class PostgreSQL:
    """A type and four bytes of length; what comes before the session begins has no type.

    A request ends where psycopg waits: with a Query, or with a Sync. Its answer ends with ReadyForQuery.
    """

    _SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102

    def __init__(self) -> None:
        self._asked, self._answered = b"", b""  # what is not whole yet
        self._begun = False  # the session: its messages have a type
        self._refusals = 0  # answers to come of one byte: it talks neither TLS nor GSSAPI
        self._request: list[bytes] = []
        self._answer: list[bytes] = []
        self._kind = ""
        self._prepared: dict[bytes, str] = {}
        self._kinds = deque[str]()  # of what is not answered yet

    def requests(self, data: bytes) -> Sequence[Message]:
        self._asked += data
        return list(self._whole_requests())

    def _whole_requests(self) -> Iterator[Message]:
        while True:
            untyped = not self._begun
            message, self._asked = _first(self._asked, 0 if untyped else 1)
            if not message:
                return
            if untyped:
                code = int.from_bytes(message[4:8], "big")
                self._begun = code not in (self._SSL, self._GSS)
                self._refusals += not self._begun
                kind = {self._SSL: "tls", self._GSS: "gssapi", self._CANCEL: "cancel"}.get(code, "connect")
                yield self._asks(kind, message, answered=code != self._CANCEL)
                continue
            self._request.append(message)
            self._read(message[:1], message[5:])
            if message[:1] in b"QSpX":
                whole, self._request = b"".join(self._request), []
                yield self._asks(self._kind or "sync", whole, answered=message[:1] != b"X")
                self._kind = ""

    def _read(self, type_of: bytes, body: bytes) -> None:
        if type_of == b"P":
            name, _, rest = body.partition(b"\0")
            self._kind = self._prepared[name] = in_words(rest.partition(b"\0")[0])
        elif type_of == b"B":
            self._kind = self._prepared.get(body.split(b"\0", 2)[1], "statement")
        elif type_of in b"QXp":
            self._kind = {b"X": "goodbye", b"p": "password"}.get(type_of) or in_words(body)

    def _asks(self, kind: str, data: bytes, answered: bool) -> Message:
        if answered:
            self._kinds.append(kind)
        return Message(kind, data, answered)

    def answers(self, data: bytes) -> Sequence[Message]:
        self._answered += data
        return list(self._whole_answers())

    def _whole_answers(self) -> Iterator[Message]:
        while self._answered:
            if self._refusals:
                assert self._answered[:1] == b"N", "the wire cannot look into TLS"
                self._refusals -= 1
                byte, self._answered = self._answered[:1], self._answered[1:]
                yield Message(self._kinds.popleft(), byte)
                continue
            message, self._answered = _first(self._answered, 1)
            if not message:
                return
            if message[:1] == b"A":
                yield Message("notify", message, answered=False)
            elif not self._kinds:  # such as the word that the server goes down
                yield Message("notice", message, answered=False)
            else:
                self._answer.append(message)
                # It is done, or wants a password.
                if message[:1] == b"Z" or (message[:1] == b"R" and message[5:9] not in (b"\0\0\0\0", b"\0\0\0\x0c")):
                    whole, self._answer = b"".join(self._answer), []
                    yield Message(self._kinds.popleft(), whole)


def _first(data: bytes, front: int) -> tuple[bytes, bytes]:
    """The message in front, and the rest; nothing, while it is not whole. Four bytes after ``front`` are its length."""
    length = front + int.from_bytes(data[front : front + 4], "big")
    return (data[:length], data[length:]) if front + 4 <= len(data) and length <= len(data) else (b"", data)


class MySQL:
    """Packets: three bytes of length, and one that counts those of an exchange. The server speaks first.

    An answer is one packet; or a table: how many columns, the columns, EOF, the rows, EOF.
    """

    _COMMANDS: ClassVar[Mapping[int, str]] = {1: "goodbye", 2: "use", 14: "ping"}

    def __init__(self) -> None:
        self._asked, self._answered = b"", b""
        self._kinds = deque[str]()
        self._answer: list[bytes] = []
        self._ends = 0  # packets that end a part of the table that is being read, still to come

    def requests(self, data: bytes) -> Sequence[Message]:
        self._asked += data
        return [self._asks(packet) for packet in self._packets("_asked")]

    def _asks(self, packet: bytes) -> Message:
        number, body = packet[3], packet[4:]
        kind = "login"
        if number == 0:  # the first of an exchange
            kind = in_words(body[1:]) if body[:1] == b"\x03" else self._COMMANDS.get(body[0], "command")
        answered = kind != "goodbye"
        if answered:
            self._kinds.append(kind)
        return Message(kind, packet, answered)

    def answers(self, data: bytes) -> Sequence[Message]:
        self._answered += data
        return [message for packet in self._packets("_answered") if (message := self._answers(packet))]

    def _answers(self, packet: bytes) -> Message | None:
        if not self._kinds:  # it greets; or goes down
            return Message("greeting" if packet[4:5] == b"\x0a" else "notice", packet, answered=False)
        first = packet[4:5]
        if (not self._answer and first not in (b"\0", b"\xff", b"\xfe", b"\x01")) or (
            not self._answer and first == b"\x01" and self._kinds[0] != "login"
        ):
            self._ends = 2  # it begins with the number of columns
        elif self._answer and (first == b"\xff" or (first == b"\xfe" and len(packet) < 13)):
            self._ends = 0 if first == b"\xff" else self._ends - 1
        self._answer.append(packet)
        if self._ends:
            return None
        whole, self._answer = b"".join(self._answer), []
        return Message(self._kinds.popleft(), whole)

    def _packets(self, where: str) -> Iterator[bytes]:
        while True:
            data: bytes = getattr(self, where)
            length = 4 + int.from_bytes(data[:3], "little")
            if len(data) < 4 or len(data) < length:
                return
            setattr(self, where, data[length:])
            yield data[:length]
