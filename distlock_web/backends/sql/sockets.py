"""A connection whose server has vanished is found out by the kernel."""

from __future__ import annotations

import socket


def keep_alive(connection: socket.socket, seconds: int) -> None:
    """``seconds`` between two questions of the kernel on a connection that says nothing."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else after hours, as the system has it
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 4000)
