"""FastAPI under uvicorn with two workers: counts, payments, and what a client or a worker that goes leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from distlock_web import lock
from distlock_web.testing.servers import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WORKERS = 2


@pytest.fixture
def shop(redis_store: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client that makes a new connection for each request: any worker may answer it."""
    port, log = free_port(), tmp_path / "log"
    command = ["-m", "uvicorn", "tests.support.sites.shop_fastapi:app", "--workers", str(WORKERS), "--port", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, *command, "--log-level", "warning"],
            cwd=ROOT, env={**os.environ, "SHOP_REDIS": redis_store}, stdout=output, stderr=output,
        )  # fmt: skip
    limits = httpx.Limits(max_keepalive_connections=0)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=90) as client:
            eventually(lambda: server.poll() is not None or _answers(client), "uvicorn answers")
            assert server.poll() is None, log.read_text()
            yield client
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/docs").status_code == 200
    except httpx.TransportError:
        return False


def test_two_workers_lose_no_sale(shop: httpx.Client) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = [each.json() for each in threads.map(lambda _: shop.post("/sell/1"), range(80))]
    assert sorted(each["sold"] for each in answers) == list(range(1, 81))


def test_a_payment_is_made_once_and_answered_byte_for_byte(shop: httpx.Client) -> None:
    def pay(key: int) -> httpx.Response:
        return shop.post("/pay", json={"order": 7}, headers={"Idempotency-Key": str(key)})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(pay, [number // 8 for number in range(64)]))
    assert [each.status_code for each in answers] == [201] * 64
    for first in range(0, 64, 8):
        assert len({each.content for each in answers[first : first + 8]}) == 1
    assert sum("Idempotency-Replayed" not in each.headers for each in answers) == 8
    other = shop.post("/pay", json={"order": 8}, headers={"Idempotency-Key": "0"})
    assert (other.status_code, shop.post("/pay", json={}).status_code) == (422, 400)


def is_free() -> bool:
    lease = lock("export", expire=30).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def _begun(response: httpx.Response) -> tuple[int, Iterator[bytes]]:
    """The worker that sends this body, and the rest of that."""
    chunks: Any = response.iter_raw(10)
    return int(next(chunks)), chunks


def test_a_client_that_goes_leaves_no_lock(shop: httpx.Client) -> None:
    with shop.stream("GET", "/export") as response:
        _chunks = _begun(response)  # kept: httpx hangs up when they go
        assert not is_free()
        assert shop.get("/export").status_code == 409
    eventually(is_free, "the lock is free")


def test_a_worker_that_is_killed_leaves_its_lock_for_no_longer_than_the_lease(shop: httpx.Client) -> None:
    with shop.stream("GET", "/export") as response:
        worker, chunks = _begun(response)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            for _ in chunks:
                pass
    eventually(is_free, "the lease has ended")
    with shop.stream("GET", "/export") as response:  # of the other worker, or the one that came for it
        assert _begun(response)[0] != worker
