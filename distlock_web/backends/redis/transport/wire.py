"""A blocking connection on which questions follow each other: nobody has to wait for an answer to ask the next one."""

from __future__ import annotations

from collections import deque
from ssl import SSLWantReadError
from typing import Generic, TypeVar

import hiredis

from ....core.runtime import now
from .address import DriverConnection
from .driver import socket_of
from .errors import ErrorReply
from .pool import Reply

Q = TypeVar("Q")

_PENDING = object()
_MOST = 4096  #: bytes that are read at once: our answers are short, and more memory takes longer to get


class Wire(Generic[Q]):
    """For one thread at a time. The answers come in the order of the questions; each is read by whoever reads next."""

    __slots__ = ("__weakref__", "_connection", "_reader", "_socket", "descriptor", "owed", "since")

    def __init__(self, connection: DriverConnection) -> None:
        self.owed: deque[Q] = deque()  #: what is not answered yet
        self.since = 0.0  #: when the first of these was sent, or another one was answered after that
        self._connection = connection
        self._reader = hiredis.Reader(protocolError=ConnectionError, replyError=ErrorReply, notEnoughData=_PENDING)
        self._socket = socket_of(connection)
        self._socket.setblocking(False)
        self.descriptor = self._socket.fileno()

    def send(self, packed: bytes, question: Q, moment: float) -> None:
        """Raises ``OSError``: also where the node has left so much unread that this would have to wait."""
        if not self.owed:
            self.since = moment
        self.owed.append(question)  # before it is sent: it may have arrived where that fails
        if self._socket.send(packed) < len(packed):
            raise TimeoutError("it reads nothing")

    def read(self) -> list[tuple[Q, Reply]]:
        """The answers that are there. Raises ``OSError`` where no more will come."""
        self._receive()
        answers = []
        while (reply := self._reader.gets()) is not _PENDING:
            if not self.owed:
                raise ConnectionError(f"the server's answer makes no sense: {reply}")
            answers.append((self.owed.popleft(), reply))
        if answers and self.owed:
            self.since = now()
        return answers

    def _receive(self) -> None:
        length = _MOST
        while length == _MOST:  # to the end: poll does not tell of what TLS has decrypted already
            try:
                data = self._socket.recv(_MOST)
            except (BlockingIOError, SSLWantReadError):
                return
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
            length = len(data)

    def close(self) -> None:
        self._connection.disconnect()  # type: ignore[no-untyped-call]
