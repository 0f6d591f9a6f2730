"""On a real server with real sockets and threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from flask import Flask
from werkzeug.serving import make_server

from distlock_web import current_request_id


@pytest.fixture
def serve() -> Iterator[Callable[[Flask], str]]:
    """Serve an app on threads; gives its address."""
    running: list[tuple[Any, threading.Thread]] = []

    def start(app: Flask) -> str:
        server = make_server("127.0.0.1", 0, app, threaded=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


def test_ids_that_are_no_http_do_no_harm(app: Flask, serve: Callable[[Flask], str]) -> None:
    """Bytes that no client library would send, on a socket of our own."""
    app.add_url_rule("/id", view_func=current_request_id, endpoint="id")
    port = int(serve(app).rpartition(":")[2])
    for sent in (b"\xff\xfe", b"a\x00b", b"a\rb", b"x" * 60_000):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"GET /id HTTP/1.0\r\nReq-Id: " + sent + b"\r\n\r\n")
            answer = b"".join(iter(partial(connection.recv, 65536), b""))
        assert b"Traceback" not in answer
        assert b"\nReq-Id: " + sent not in answer
    assert httpx.get(f"http://127.0.0.1:{port}/id", headers={"Req-Id": "seven"}).text == "seven"


def test_a_client_that_goes_away_in_the_middle_of_a_stream_leaves_no_lock(
    app: Flask, serve: Callable[[Flask], str]
) -> None:
    from distlock_web import lock

    ended = threading.Event()

    @app.get("/stream")
    def stream() -> Iterator[bytes]:
        def body() -> Iterator[bytes]:
            try:
                with lock("stream", expire=60):
                    while True:
                        yield b"x" * 65536
            finally:
                ended.set()

        return body()

    with httpx.stream("GET", f"{serve(app)}/stream", timeout=30) as response:
        next(response.iter_raw())
    assert ended.wait(20)
    with app.app_context():
        lease = lock("stream").try_acquire()
    assert lease is not None
    lease.release()
