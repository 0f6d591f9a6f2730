"""Wires over redis-py's own calls, for connections whose socket is not the kernel's."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import ResponseError

from ....core.runtime import now
from .driver import socket_of
from .errors import ErrorReply
from .exchange import Reply


class DriverWire:
    """By redis-py's public calls: TLS, gevent's sockets, connection classes of others, health checks."""

    def __init__(self, connection: Any, limit: float) -> None:
        self._connection = connection
        self._limit = limit
        socket_of(connection).settimeout(limit)

    def write(self, packed: bytes) -> None:
        self._connection.send_packed_command([packed])

    def read(self, timeout: float | None = None) -> Reply:
        connection = self._connection
        if timeout is not None:  # on the socket: redis-py's read_response takes one since 8.0
            socket_of(connection).settimeout(max(0.001, timeout))  # with 0 it would not wait at all
        try:
            return connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except ResponseError as error:
            return ErrorReply.from_driver(error)
        finally:
            if timeout is not None:
                socket_of(connection).settimeout(self._limit)


class FakeWire:
    """The same on fakeredis: it has no socket with a time-out, and its ``read_response`` would wait for ever."""

    def __init__(self, connection: Any, limit: float) -> None:
        self._connection = connection
        self._limit = limit

    def write(self, packed: bytes) -> None:
        self._connection.send_packed_command([packed])

    def read(self, timeout: float | None = None) -> Reply:
        until = now() + (self._limit if timeout is None else timeout)
        while not self._connection.can_read(0):  # older ones wait by the time of day, which tests freeze
            if now() >= until:
                raise TimeoutError("no answer in time")
            time.sleep(0.001)
        try:
            return self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except ResponseError as error:
            return ErrorReply.from_driver(error)
