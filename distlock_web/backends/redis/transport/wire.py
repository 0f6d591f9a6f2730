"""What a thread writes to its connection and reads from it, once redis-py has opened it and signed in."""

from __future__ import annotations

import select
import socket
import struct
from typing import Protocol

import hiredis

from .address import DriverConnection, is_fake
from .driver import plain_socket_of
from .driver_wires import DriverWire, FakeWire
from .errors import ErrorReply
from .exchange import Reply

_PENDING = object()
#: Bytes in one read.
CHUNK = 16384


class Wire(Protocol):
    """Both raise one of ``FAILURES``; if nothing comes in time one of ``TIMEOUTS``, after which it may be read on."""

    def write(self, packed: bytes) -> None: ...

    def read(self, timeout: float | None = None) -> Reply:
        """The next answer, ``ErrorReply`` as a value if it is an error; within the limit, if no time-out is given."""


def wire_of(connection: DriverConnection, limit: float) -> Wire:
    """``limit``: seconds that an answer has, and a write."""
    if is_fake(type(connection)):
        return FakeWire(connection, limit)
    plain = plain_socket_of(connection)
    return DriverWire(connection, limit) if plain is None else _KernelWire(plain, limit)


class _KernelWire:
    """By a socket of the kernel's, with the kernel's time-outs: Python's put a ``poll`` before every call.

    With several threads each such call is one more hand-over of the interpreter.
    """

    def __init__(self, plain: socket.socket, limit: float) -> None:
        self._socket = plain
        self._limit = limit
        self._reader = hiredis.Reader(protocolError=ConnectionError, replyError=ErrorReply, notEnoughData=_PENDING)
        self._poller = select.poll()
        self._poller.register(plain, select.POLLIN)
        plain.settimeout(None)
        microseconds = max(1, round(limit * 1_000_000))  # 0 would be for ever
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            plain.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", *divmod(microseconds, 1_000_000)))

    def write(self, packed: bytes) -> None:
        try:
            self._socket.sendall(packed)
        except BlockingIOError:
            raise TimeoutError(f"nothing could be sent for {self._limit:g} s") from None

    def read(self, timeout: float | None = None) -> Reply:
        reader = self._reader
        try:
            while (reply := reader.gets()) is _PENDING:
                # To the millisecond, whatever signals come: the kernel's time-outs count in ticks, and begin anew.
                if timeout is not None and not self._poller.poll(timeout * 1000):
                    raise TimeoutError("no answer in time")
                data = self._socket.recv(CHUNK)
                if not data:
                    raise ConnectionError("the server closed the connection")
                reader.feed(data)
            return reply
        except BlockingIOError:
            raise TimeoutError("no answer in time") from None
