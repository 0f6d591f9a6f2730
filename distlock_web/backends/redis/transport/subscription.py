"""The listening connection: subscribed to this process's channel, read by one at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from ....core.runtime import Process, now
from ..scripts import bulk
from .address import Address
from .errors import Refused
from .pool import _PENDING, _reader

#: Seconds of silence after which the server is asked whether it is still there, and given as long to answer.
PING_AFTER = 5.0

_PING = b"*1\r\n" + bulk("PING")


class Grant(NamedTuple):
    """The lock was handed over: its fence, and when, by the store's clock in µs."""

    fence: int
    at: int


class Notification(NamedTuple):
    """What the server published for one waiter: a grant, or None: ask again."""

    token: str
    grant: Grant | None


class Subscription:
    """One open connection. Raises ``OSError``, redis-py's errors, or ``Refused`` (no right to the channel)."""

    def __init__(self, address: Address) -> None:
        self._connection = cast("Any", address.connect())
        self._socket: Any = self._connection._sock
        self._reader = _reader()
        self._pinged = False
        self._heard = now()
        self._socket.sendall(b"*2\r\n" + bulk("SUBSCRIBE") + bulk(f"distlock:wake:{Process.ident}"))
        try:
            self._confirmed()
        except BaseException:
            self.close()
            raise

    def _confirmed(self) -> None:
        """Wait for the server's word within the connection's own time-out: only then may anybody join a queue."""
        while not any(message[0] == b"subscribe" for message in self._receive()):
            pass

    def read(self, seconds: float) -> list[Notification]:
        """The news of at most so many seconds; empty if there was none. A server that has gone raises."""
        self._ask_for_life()
        self._socket.settimeout(max(0.001, min(seconds, PING_AFTER)))
        try:
            messages = list(self._receive())
        except TimeoutError:
            return []
        self._heard, self._pinged = now(), False
        return [news for message in messages if message[0] == b"message" if (news := _news(message[2])) is not None]

    def _receive(self) -> Iterator[list[Any]]:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the listening connection")
        self._reader.feed(data)
        while (message := self._reader.gets()) is not _PENDING:
            if isinstance(message, Refused):
                raise message
            yield message

    def _ask_for_life(self) -> None:
        # A connection that a firewall dropped looks like a quiet one: nobody would ever be woken again.
        silent = now() - self._heard
        if self._pinged and silent > 2 * PING_AFTER:
            raise ConnectionError("the server is silent on the listening connection")
        if not self._pinged and silent > PING_AFTER:
            self._socket.sendall(_PING)
            self._pinged = True

    def shut(self) -> None:
        """Stop whoever reads, from another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed already

    def close(self) -> None:
        self._connection.disconnect()


def _news(payload: bytes) -> Notification | None:
    """None: not one of our messages; anybody may publish on a channel."""
    token, *words = payload.decode("ascii", "replace").split(" ")
    if not words:
        return Notification(token, None)
    try:
        fence, at = words
        return Notification(token, Grant(int(fence), int(at)))
    except ValueError:
        return None
