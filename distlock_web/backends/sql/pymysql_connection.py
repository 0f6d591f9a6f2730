"""Connections of PyMySQL. Their server is reached first: else a refusal costs an SSL context, and more.

Those of one store have one SSL context: to make one costs 50 ms of CPU, so that callers who came together were answered
late, and in another order.
"""

from __future__ import annotations

import inspect
import os
import socket
from contextlib import suppress
from typing import Any

from pymysql.connections import Connection
from pymysql.constants.CR import CR_CONN_HOST_ERROR
from pymysql.err import OperationalError

from .sockets import keep_alive

#: Of those that lead elsewhere than to a host and a port, PyMySQL does all.
_BY_PYMYSQL = {"unix_socket", "bind_address", "read_default_file", "defer_connect"}
_SIGNATURE = inspect.signature(Connection)


class _PyMySQLConnection(Connection):  # type: ignore[misc]
    """``contexts``: those that were made for the connections before, by what they were made of."""

    def __init__(self, contexts: dict[str, Any], **given: Any) -> None:
        self._contexts = contexts
        super().__init__(**given)

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        # Not by ``ssl=``, which takes a context, too: it then refuses a server that has no TLS.
        files = [_changed(path) for path in sslp.values()] if isinstance(sslp, dict) else ()
        made_of = repr((sslp, files))
        context = self._contexts.get(made_of)
        if context is None:
            self._contexts.clear()  # a file has changed
            context = self._contexts[made_of] = super()._create_ssl_ctx(sslp)
        return context


def _changed(path: object) -> object:
    """When a file was changed, such as a certificate that was renewed."""
    with suppress(OSError, ValueError):
        return os.stat(path).st_mtime_ns if isinstance(path, (str, bytes)) else None
    return None


def connect(given: dict[str, Any], keepalive: int, contexts: dict[str, Any]) -> Any:
    if _BY_PYMYSQL & given.keys():
        return _PyMySQLConnection(contexts, **given)
    _SIGNATURE.bind(**given)  # a keyword that it does not have is a wrong setting, also while the host is away
    host = given.get("host") or "localhost"
    try:
        reached = socket.create_connection((host, int(given.get("port") or 3306)), given["connect_timeout"])
    except OSError as error:
        raise OperationalError(CR_CONN_HOST_ERROR, f"Can't connect to {host!r}: {error}") from error
    try:
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(reached, keepalive)
        connection = _PyMySQLConnection(contexts, **given, defer_connect=True)
        connection.connect(reached)
    except BaseException:
        reached.close()
        raise
    return connection
