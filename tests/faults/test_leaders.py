"""``leader`` in real workers: one leads, another one when that is killed, stopped or ended, and never two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web.core.runtime import now
from distlock_web.testing.servers import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SITE = "tests.support.sites.leading"
GUNICORN = f"gunicorn {SITE}:wsgi --bind 127.0.0.1:PORT --workers 2 --timeout 300"
CELERY = "celery --app tests.support.programs.celery_leader worker --concurrency 1 --loglevel WARNING --hostname"
QUIET = "--without-gossip --without-mingle --without-heartbeat"
#: What is started: one program with two workers, or two.
PROGRAMS = {
    "gunicorn": [GUNICORN],
    "gunicorn threads": [f"{GUNICORN} --worker-class gthread --threads 2"],
    "gunicorn preload": [f"{GUNICORN} --preload"],
    "uvicorn": [f"uvicorn {SITE}:asgi --port PORT --workers 2 --lifespan on"],
    "celery": [f"{CELERY} {name}@leading {QUIET}" for name in ("one", "two")],
}
#: Nothing in a test waits for the end of this.
LONG_LEASE = 600.0
#: This one ends in a test. A third of it is what a busy machine may take to hear that it is over.
SHORT_LEASE = 5.0


class Company:
    """The workers, and what they have told."""

    def __init__(self, url: str, log: Path) -> None:
        self._redis = redis.Redis.from_url(url)
        self._env = {**os.environ, "DISTLOCK_URL": url, "PYTHONPATH": str(ROOT)}
        self._env.pop("DJANGO_SETTINGS_MODULE", None)  # Celery would take the stores of these tests' own project
        self._log = log
        self.servers: list[subprocess.Popen[bytes]] = []
        self._still: dict[int, float] = {}

    def begin(self, name: str, lease: float, **env: str) -> None:
        for command in PROGRAMS[name]:
            with self._log.open("ab") as output:
                self.servers.append(
                    subprocess.Popen(
                        [sys.executable, "-m", *command.replace("PORT", str(free_port())).split()],
                        cwd=ROOT,
                        env={**self._env, "LEASE": str(lease), **env},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def told(self, kind: str = "") -> list[dict[str, Any]]:
        told = [json.loads(line) for line in self._redis.lrange("told", 0, -1)]
        return [each for each in told if kind in ("", each["kind"])]

    def saw(self, what: Callable[[], object], words: str) -> None:
        try:
            eventually(what, words)
        except TimeoutError:
            raise AssertionError(f"{words}: {self.told()}\n{self.said()}") from None

    def said(self) -> str:
        return self._log.read_text()

    def leader(self, *, after: int = 0) -> int:
        """Its pid, when somebody has started for the next time."""
        self.saw(lambda: len(self.told("start")) > after, "somebody starts")
        started = self.told("start")[after]
        assert started["leads"]
        return int(started["pid"])

    def send(self, pid: int, signum: int) -> None:
        if signum in (signal.SIGKILL, signal.SIGSTOP):
            self._still[pid] = now()
        os.kill(pid, signum)

    def slept(self, pid: int) -> float:
        return now() - self._still[pid]

    def assert_never_two(self) -> None:
        """From the call of ``start`` to the end of ``stop``. One that is killed, or sleeps, does nothing from then."""
        free_since = 0.0
        working: dict[int, float] = {}
        for each in sorted(self.told(), key=lambda told: float(told["at"])):
            pid, kind, at = each["pid"], each["kind"], each["at"]
            if kind == "start":
                for other in [other for other in working if self._still.get(other, at) < at]:
                    working.pop(other)
                assert not working, f"{pid} starts beside {working}: {self.told()}"
                assert at > free_since
                working[pid] = at
            elif kind == "stopped":
                working.pop(pid, None)
                if pid not in self._still:
                    free_since = at

    def close(self) -> None:
        for server in self.servers:
            for signum in (signal.SIGCONT, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, signum)
        for server in self.servers:
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        self._redis.close()


@pytest.fixture
def company(redis_url: str, tmp_path: Path) -> Iterator[Company]:
    company = Company(redis_url, tmp_path / "log")
    try:
        yield company
    finally:
        company.close()


@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=pytest.mark.nightly if name == "gunicorn threads" else []) for name in PROGRAMS],
)
def test_a_worker_that_is_ended_hands_over_at_once(company: Company, program: str) -> None:
    """SIGTERM. The next one would wait for ten minutes, if the lease had to end by itself."""
    company.begin(program, LONG_LEASE, GRACE="5" if program == "gunicorn preload" else "0")
    first = company.leader()
    if program == "celery":
        assert first in [server.pid for server in company.servers], "the parent leads, none of its pool"
    else:
        assert first not in [server.pid for server in company.servers], "a worker leads, not their parent"
    company.send(first, signal.SIGTERM)
    second = company.leader(after=1)
    assert second != first
    told = [(each["kind"], each["pid"]) for each in company.told()]
    assert told[0] == ("start", first)
    assert told[-1] == ("start", second)
    # Twice, where the signal has come before start had returned.
    assert told[1:-1] in ([("stop", first), ("stopped", first)], [("stop", first), ("stopped", first)] * 2), told
    assert not company.told("stop")[0]["leads"]
    company.assert_never_two()


def test_another_leads_when_one_is_killed_and_when_one_sleeps(company: Company) -> None:
    company.begin("gunicorn", SHORT_LEASE, GRACE="0")
    company.send(company.leader(), signal.SIGKILL)
    sleeper = company.leader(after=1)
    company.send(sleeper, signal.SIGSTOP)
    starts = len(company.told("start"))
    assert company.leader(after=starts) != sleeper
    company.saw(lambda: company.slept(sleeper) > SHORT_LEASE + 0.2, "it sleeps for more than its lease")
    stops = len(company.told("stop"))
    company.send(sleeper, signal.SIGCONT)
    company.saw(lambda: [each for each in company.told("woke") if each["pid"] == sleeper], "it wakes")
    company.saw(lambda: [each for each in company.told("stopped") if each["pid"] == sleeper], "it stops")
    assert not [each for each in company.told("woke") if each["leads"]], "it believed that it led"
    assert not [each for each in company.told("stop")[stops:] if each["leads"]]
    company.assert_never_two()
