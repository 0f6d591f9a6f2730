"""Connections of PyMySQL. Their server is reached first: else a refusal costs an SSL context, and more."""

from __future__ import annotations

import inspect
import socket
from typing import Any

from pymysql.connections import Connection
from pymysql.constants.CR import CR_CONN_HOST_ERROR
from pymysql.err import OperationalError

#: Of those that lead elsewhere than to a host and a port, PyMySQL does all.
_BY_PYMYSQL = {"unix_socket", "bind_address", "read_default_file", "defer_connect"}
_SIGNATURE = inspect.signature(Connection)


def connect(given: dict[str, Any], keepalive: int) -> Any:
    """``keepalive``: seconds between two questions of the kernel on a connection that says nothing."""
    if _BY_PYMYSQL & given.keys():
        return Connection(**given)
    _SIGNATURE.bind(**given)  # a keyword that it does not have is a wrong setting, also while the host is away
    host = given.get("host") or "localhost"
    try:
        reached = socket.create_connection((host, int(given.get("port") or 3306)), given["connect_timeout"])
    except OSError as error:
        raise OperationalError(CR_CONN_HOST_ERROR, f"Can't connect to {host!r}: {error}") from error
    try:
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reached.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # else after hours, as the system has it
            reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive)
            reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive)
            reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, keepalive * 4000)
        connection = Connection(**given, defer_connect=True)
        connection.connect(reached)
    except BaseException:
        reached.close()
        raise
    return connection
