"""A Redis in Python, for machines that have none: fakeredis over TCP. Slow, and good enough for the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import lupa  # noqa: F401 - without it fakeredis knows no scripts, and says so too late
from fakeredis import TcpFakeServer
from redis.exceptions import ResponseError


class _Server(TcpFakeServer):
    request_queue_size = 128  # socketserver's 5 would let a rush of connections wait for a second


@contextmanager
def fake_redis() -> Iterator[str]:
    """Serve on a free port of the loopback; gives the URL."""
    with _Server(("127.0.0.1", 0)) as server:
        server.RequestHandlerClass = _without_hanging_up(server.RequestHandlerClass)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield "redis://{}:{}/0".format(*server.server_address)
        finally:
            server.shutdown()


def _without_hanging_up(handler: Any) -> type:
    """fakeredis closes a connection after an error. Redis does not: NOSCRIPT only asks for the script's source."""

    class Handler(handler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            read_response = self.current_client.read_response

            def answer() -> Any:
                try:
                    return read_response()
                except ResponseError as error:
                    return error  # which fakeredis writes as Redis writes an error

            self.current_client.read_response = answer

    return Handler
