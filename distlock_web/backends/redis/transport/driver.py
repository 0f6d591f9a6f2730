"""What we use of redis-py's connections that it does not promise. No other file does: a test looks."""

from __future__ import annotations

import _socket
import asyncio
import signal
import socket
import sys

import redis

from .address import AsyncDriverConnection, DriverConnection


def fileno_of(connection: DriverConnection) -> int:
    """Of its socket; -1: it is closed."""
    found = connection._sock
    return -1 if found is None else int(found.fileno())


def socket_of(connection: DriverConnection) -> socket.socket:
    """What it reads and writes. ``ConnectionError`` if it is closed."""
    found: socket.socket | None = connection._sock
    if found is None:
        raise ConnectionError("the connection was closed while it was opened")
    return found


def plain_socket_of(connection: DriverConnection) -> socket.socket | None:
    """The same where it is the kernel's own, with nothing between, and redis-py's own classes do nothing but use it."""
    found = socket_of(connection)
    own = type(connection) in (redis.Connection, redis.UnixDomainSocketConnection)
    # A socket of TLS is of a class below this one; where gevent has put its own in its place, that is of none above.
    plain = type(found) is socket.socket and issubclass(socket.socket, _socket.socket)
    # The time-outs are written as Linux reads them.
    plain = plain and sys.platform == "linux" and not connection.health_check_interval
    return found if own and plain and not _is_interrupted() else None


def _is_interrupted() -> bool:
    """Whether a sampler's timer runs. Each of its signals begins the kernel's time-out anew, inside of recv(): it would
    never be over. Looked at where a connection is opened alone: for each lock it would be a call to the kernel more.
    """
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return any(signal.getitimer(timer)[1] for timer in timers)


def transport_of(connection: AsyncDriverConnection) -> asyncio.WriteTransport:
    """What asyncio writes through. ``ConnectionError`` if it is closed."""
    writer = connection._writer
    if writer is None:
        raise ConnectionError("the connection was closed while it was opened")
    return writer.transport


def close_now(connection: AsyncDriverConnection) -> None:
    """Let go of it, without waiting for the server; also outside of a task, and if it was not opened to its end."""
    writer, connection._writer = connection._writer, None  # which says that it is closed
    if writer is not None:
        writer.close()
