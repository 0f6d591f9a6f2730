"""N processes × M increments through a view under ``ATOMIC_REQUESTS``, on real servers.

The plain decorator gives its lock back before Django commits: it loses updates. ``until="commit"`` loses none.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from distlock_web.testing.servers import OwnServer
from tests.support.databases import Database, Kind
from tests.support.redis_lock import fence_of

ROOT = Path(__file__).parents[2]
WORKERS, INCREMENTS = 4, 25

pytestmark = pytest.mark.slow


class Shop(OwnServer):
    """``tests/support/sites/counter_django.py`` under gunicorn, with some worker processes."""

    name = "gunicorn"

    def __init__(self, database: Database, redis_url: str) -> None:
        super().__init__()
        self._environment = {"SHOP_DATABASE": json.dumps(database.django), "DISTLOCK_URL": redis_url}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        code = "from tests.support.sites import counter_django; counter_django.make()"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **self._environment}, cwd=ROOT, check=True)

    def command(self, port: int) -> list[str]:
        variables = [part for item in self._environment.items() for part in ("--env", "=".join(item))]
        command = [sys.executable, "-m", "gunicorn", "--chdir", str(ROOT), "--workers", str(WORKERS)]
        return [*command, "--bind", f"127.0.0.1:{port}", *variables, "tests.support.sites.counter_django:application"]

    def answers(self, connection: socket.socket) -> bool:
        connection.settimeout(20)  # the port is open before the first worker is
        connection.sendall(b"GET /look HTTP/1.0\r\n\r\n")
        return connection.recv(12)[8:] == b" 200"


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, make_database: Callable[[Kind], Database], redis_url: str) -> Iterator[Shop]:
    with Shop(make_database(request.param), redis_url) as server:
        yield server


def increments(shop: Shop, view: str) -> int:
    """What the counter says after all the clients have had all their answers."""

    def client(_: int) -> None:
        with httpx.Client(base_url=shop.url, timeout=60) as http:
            for _ in range(INCREMENTS):
                http.get(view).raise_for_status()

    with ThreadPoolExecutor(WORKERS) as clients:
        list(clients.map(client, range(WORKERS)))
    return int(httpx.get(f"{shop.url}/look").text)


def test_a_plain_decorator_loses_updates(shop: Shop) -> None:
    assert increments(shop, "/plain") < WORKERS * INCREMENTS


def test_until_commit_loses_none(shop: Shop) -> None:
    assert increments(shop, "/whole") == WORKERS * INCREMENTS


def test_a_view_that_was_stopped_past_its_lease_writes_nothing_and_its_client_sees_an_error(
    shop: Shop, redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as signals, ThreadPoolExecutor(2) as clients:
        first = clients.submit(httpx.get, f"{shop.url}/pausing", timeout=60)
        _, pid = signals.blpop(["inside"], timeout=30)
        fence = fence_of(signals, "disLock:paused")
        with stopped(int(pid)):
            second = clients.submit(httpx.get, f"{shop.url}/pausing", timeout=60)
            while fence_of(signals, "disLock:paused") in (fence, None):
                assert not second.done()  # the second one's turn comes when the lease is over
        # The row is the first one's still, for its transaction is open: the second one waits for it in the database.
        signals.rpush("go", "")
        assert first.result().status_code == 500
        _, pid = signals.blpop(["inside"], timeout=30)
        signals.rpush("go", "")
        assert second.result().text == "written"
    assert httpx.get(f"{shop.url}/look").text == "100"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
