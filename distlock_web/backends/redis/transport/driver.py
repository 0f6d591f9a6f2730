"""What we use of redis-py's connections that it does not promise. No other file does: a test looks."""

from __future__ import annotations

import asyncio
import socket

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


def transport_of(connection: AsyncDriverConnection) -> asyncio.WriteTransport:
    """What asyncio writes through. ``ConnectionError`` if it is closed."""
    writer = connection._writer
    if writer is None:
        raise ConnectionError("the connection was closed while it was opened")
    return writer.transport


def close_now(connection: AsyncDriverConnection) -> None:
    """Let go of it, without waiting for the server."""
    connection._close()  # type: ignore[no-untyped-call]
