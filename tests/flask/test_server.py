"""On a real server with real sockets and threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from flask import Flask
from werkzeug.serving import make_server

from distlock_web import current_request_id, distributed_lockable


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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_requests_with_the_same_id_exclude_each_other(
    app: Flask, gate: Any, serve: Callable[[Flask], str], asynchronous: bool
) -> None:
    def pay(order_id: int) -> str:
        gate.pass_through()
        return current_request_id()

    async def apay(order_id: int) -> str:
        return pay(order_id)

    locked: Any = distributed_lockable(key="order:{order_id}", expire=30)
    app.add_url_rule("/pay/<int:order_id>", "pay", locked(apay if asynchronous else pay), methods=["POST"])
    url, same = f"{serve(app)}/pay/7", {"Req-Id": "seven", "Accept": "application/json"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.post, url, headers=same, timeout=30)
        assert gate.entered.wait(20)
        second = httpx.post(url, headers=same, timeout=30)
        gate.opened.set()
    assert (first.result().status_code, first.result().text) == (200, "seven")
    assert second.status_code == 409
    assert second.headers["Content-Type"] == "application/problem+json"
    assert second.json()["request_id"] == second.headers["Req-Id"] == "seven"
    assert httpx.post(url, headers=same, timeout=30).status_code == 200


def test_a_crowd_that_waits_sells_one_at_a_time(app: Flask, serve: Callable[[Flask], str]) -> None:
    inside, most, stock = 0, 0, 10

    @app.post("/buy")
    @distributed_lockable(key="stock", expire=30, wait=30)
    def buy() -> str:
        nonlocal inside, most, stock
        inside += 1
        most = max(most, inside)
        left = stock
        threading.Event().wait(0.002)  # the race that the lock is against
        stock = left - 1
        inside -= 1
        return str(stock)

    url = f"{serve(app)}/buy"
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: httpx.post(url, timeout=60).text, range(10)))
    assert sorted(map(int, answers)) == list(range(10))
    assert (most, stock) == (1, 0)


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
