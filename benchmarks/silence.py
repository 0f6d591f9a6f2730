"""The store hangs: what is left of a site whose other views need no lock."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from distlock_web.testing.servers import RedisServer, free_port

from .plan import Bench, in_turns
from .results import Case, Measure

THREADS = 8  #: of the one worker
CLIENTS = {"bare": 4, "locked": 12}
START = 20.0  #: seconds for the site to answer
SETTLE = 0.5
NOTICED = 1.5  #: seconds in which the first requests wait for their time-out, of one second in our case
THINK = 0.1  #: seconds between two requests of one client for the lock

#: Our view, and one that takes django-redis's lock, which is redis-py's.
VIEWS = {"distlock_web": "decorated", "django-redis": "cache_lock"}
MEASURES = (
    Measure("before", "/s", 0),
    Measure("while it hangs", "/s", 0),
    Measure("kept", "", 2),
    Measure("gap", "s", 2, shown=1),
    Measure("longest refusal", "s", 2, shown=1),
)


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(len(VIEWS) * bench.plan.silences)
    title = f"The store is stopped under load: requests without a lock, in one process of {THREADS} threads"
    case = Case("silence", title, MEASURES, "")
    for name in in_turns(list(VIEWS), bench.plan.silences):
        case.add(name, **_measured(VIEWS[name], bench.plan.silence))
        bench.step(f"{case.name}: {name}")
    yield case


def _measured(view: str, seconds: float) -> dict[str, float]:
    with RedisServer() as store, _site(store.url) as port:
        load = _Load(port, view)
        try:
            time.sleep(SETTLE)
            before = load.rate(seconds)
            load.longest = load.gap = 0.0
            store.pause()
            time.sleep(NOTICED)
            during = load.rate(seconds)
            gap, longest = load.longest_gap(), load.longest_refusal()
        finally:
            store.resume()
            load.stop()
    return {"before": before, "while it hangs": during, "kept": during / before, "gap": gap, "longest refusal": longest}


@contextmanager
def _site(url: str) -> Iterator[int]:
    port = free_port()
    command = ["-m", "gunicorn", "benchmarks.wsgi", "--bind", f"127.0.0.1:{port}", "--log-level", "critical"]
    command += ["--worker-class", "gthread", "--workers", "1", "--threads", str(THREADS), "--graceful-timeout", "1"]
    site = subprocess.Popen([sys.executable, *command], env={**os.environ, "BENCHMARK_URL": url})
    try:
        _until_it_answers(port)
        yield port
    finally:
        site.terminate()
        try:
            site.wait(10)
        except subprocess.TimeoutExpired:
            site.kill()
            site.wait()


def _until_it_answers(port: int) -> None:
    until = time.monotonic() + START
    while time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/bare/1")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise TimeoutError(f"The site did not answer within {START:g} s.")


class _Load:
    """Clients that ask again and again, each on a connection of its own: some for the lock, some for none."""

    def __init__(self, port: int, view: str) -> None:
        self._port, self._view = port, view
        self._over = threading.Event()
        self._answers = 0
        self._answered = time.monotonic()
        self.gap = self.longest = 0.0
        self._asked: dict[int, float] = {}
        self._threads = [
            threading.Thread(target=self._ask, args=(kind, number), daemon=True)
            for kind, count in CLIENTS.items()
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def rate(self, seconds: float) -> float:
        """Answers a second to requests that need no lock."""
        since, before = time.monotonic(), self._answers
        time.sleep(seconds)
        return (self._answers - before) / (time.monotonic() - since)

    def longest_gap(self) -> float:
        """The longest time without an answer to any request that needs no lock."""
        return max(self.gap, time.monotonic() - self._answered)

    def longest_refusal(self) -> float:
        """The longest that a request for the lock took, or has been taking."""
        moment = time.monotonic()
        return max([self.longest, *(moment - asked for asked in self._asked.values())])

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def _ask(self, kind: str, number: int) -> None:
        path = f"/{self._view}/{number}" if kind == "locked" else f"/bare/{number}"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.is_set():
            asked = time.monotonic()
            if kind == "locked":
                self._asked[number] = asked
            try:
                connection.request("GET", path)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                continue
            if kind == "bare":
                moment = time.monotonic()
                self.gap = max(self.gap, moment - self._answered)
                self._answers, self._answered = self._answers + 1, moment
            else:
                self.longest = max(self.longest, time.monotonic() - asked)
                time.sleep(THINK)  # a refusal is quick: without a pause they would be a flood
        connection.close()
