"""Two workers of every web server, one lock: docs/web-servers.md says what has to be set for that, and no more is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import configure
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import list_all
from distlock_web.testing.servers import ServerMissing, free_port
from tests.support.requirements import without
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SITE = "tests.support.sites.two_workers"
REQUESTS, WAITERS = 30, 4

GUNICORN = f"gunicorn {SITE}:wsgi --bind 127.0.0.1:PORT --workers 2"
UWSGI = f"pyuwsgi --master --die-on-term --processes 2 --http-socket 127.0.0.1:PORT --home {sys.prefix} -w {SITE}:wsgi"


@dataclass(frozen=True)
class Program:
    """How a server is started. One that has no workers is started twice."""

    command: str
    workers: int = 2
    forks_beside_threads: bool = True
    ends_with_worker: bool = False  #: when one is killed; then whoever started it, such as systemd, has to do so again

    @property
    def module(self) -> str:
        return self.command.split()[0]

    @property
    def interface(self) -> str:
        return "asgi" if f"{SITE}:asgi" in self.command else "wsgi"

    @property
    def environment(self) -> dict[str, str]:
        return {"START_UP_RENEWS": "yes"} if self.forks_beside_threads else {}

    def argv(self, port: int) -> list[str]:
        words = self.command.replace("PORT", str(port)).split()
        if self.module == "pyuwsgi":  # it is a module of C's, which `-m` does not run
            return [sys.executable, "-c", "import pyuwsgi, sys; sys.argv[0] = 'uwsgi'; pyuwsgi.run()", *words[1:]]
        return [sys.executable, "-m", *words]


PROGRAMS = {
    "gunicorn sync": Program(GUNICORN),
    "gunicorn gthread": Program(f"{GUNICORN} --worker-class gthread --threads 4"),
    "gunicorn gevent": Program(f"{GUNICORN} --worker-class gevent"),
    "gunicorn preload": Program(f"{GUNICORN} --worker-class gthread --threads 4 --preload"),
    "uwsgi": Program(UWSGI, forks_beside_threads=False),
    "uwsgi threads": Program(f"{UWSGI} --threads 4 --py-call-uwsgi-fork-hooks"),
    "uwsgi lazy-apps": Program(f"{UWSGI} --lazy-apps"),
    "uwsgi gevent": Program(f"{UWSGI} --gevent 20 --gevent-monkey-patch --py-call-uwsgi-fork-hooks"),
    "uvicorn": Program(f"uvicorn {SITE}:asgi --port PORT --workers 2 --lifespan off"),
    "hypercorn": Program(f"hypercorn {SITE}:asgi --bind 127.0.0.1:PORT --workers 2", ends_with_worker=True),
    "daphne": Program(f"daphne {SITE}:asgi --port PORT", workers=1),
    "waitress": Program(f"waitress --listen 127.0.0.1:PORT --threads 4 {SITE}:wsgi", workers=1),
}

#: One that forks, one that forks in C beside threads, and one of asyncio; the others are tried at night.
FIRST = ("gunicorn preload", "uwsgi threads", "uvicorn")
EACH = [pytest.param(name, marks=[] if name in FIRST else pytest.mark.nightly) for name in PROGRAMS]


class Site:
    """Two workers of a server, which answer at one port or at two."""

    def __init__(self, program: Program, url: str, log: Path) -> None:
        self._program, self._url, self._log = program, url, log
        self._ports = [free_port() for _ in range(2 // program.workers)]
        self._next = cycle(self._ports)
        self._servers = [self._start(port) for port in self._ports]

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                self._program.argv(port),
                cwd=ROOT,
                env={**os.environ, **self._program.environment, "DISTLOCK_URL": self._url, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that the workers of one that does not end can be ended
            )

    def kill(self, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        if self._program.ends_with_worker:
            self._servers[0].wait(PATIENCE)
            self._servers.append(self._start(self._ports[0]))

    def get(self, path: str) -> dict[str, Any]:
        """Raises ``OSError`` if nobody serves that, or who was to do so is killed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{next(self._next)}/{path}", timeout=PATIENCE) as response:
            return dict(json.load(response))

    def get_again(self, path: str) -> dict[str, Any]:
        """The same from whoever lives: a client asks again where its worker was killed."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.get(path)
            except urllib.error.HTTPError:
                raise
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def of_lock(self, view: str) -> str:
        return f"{self._program.interface}/{view}"

    def said(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            with suppress(subprocess.TimeoutExpired):
                server.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@pytest.fixture(params=EACH)
def site(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[Site]:
    program = PROGRAMS[request.param]
    if find_spec(program.module) is None:
        without(program.module, ServerMissing(f"{program.module} is not installed"))
    running = Site(program, redis_url, tmp_path / "log")
    try:
        yield running
    finally:
        running.stop()


def waiters() -> int:
    return sum(row.lock.waiters for row in list_all(registry()).rows if row.lock.name.endswith("stock:1"))


def test_two_workers_under_one_lock(site: Site, redis_url: str) -> None:
    configure({"default": {"LOCATION": redis_url}})
    with ThreadPoolExecutor(12) as clients, redis.Redis.from_url(redis_url) as told:

        def ask(times: int, view: str) -> list[Future[dict[str, Any]]]:
            return [clients.submit(site.get_again, site.of_lock(view)) for _ in range(times)]

        def answers(asked: list[Future[dict[str, Any]]]) -> list[dict[str, Any]]:
            return [each.result(PATIENCE) for each in asked]

        served: list[dict[str, Any]] = []
        while len({each["pid"] for each in served}) < 2 or len(served) < REQUESTS:
            served += answers(ask(REQUESTS, "work"))
            assert len(served) < 20 * REQUESTS, site.said()
        assert {each["inside"] for each in served} == {1}, "two were under the lock at once"

        killed = clients.submit(site.get, site.of_lock("be-killed"))
        eventually(lambda: told.llen("to be killed"), "a worker is under the lock")
        queued = ask(WAITERS, "work")
        eventually(waiters, "others wait")
        site.kill(int(told.lpop("to be killed")))
        assert {each["inside"] for each in answers(queued)} == {1}
        assert isinstance(killed.exception(PATIENCE), OSError)
    assert "Traceback" not in site.said()
