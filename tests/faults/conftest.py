"""The laboratory: worker processes, the history of what they do, and proxies, all ended with the test."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web.core.registry import registry
from distlock_web.testing.faults import Proxy, Worker
from distlock_web.testing.harness import HARNESSES
from distlock_web.testing.history import History
from distlock_web.testing.servers import RedisServer

WORKER = Path(__file__).with_name("worker.py")

#: The lock that all workers of a test contend for, and its keys in Redis.
KEY = "lab"
NAME = f"disLock:{KEY}"


class Lab:
    """Starts workers, and checks in the end what they did."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.history = History()
        self.workers: list[Worker] = []
        self._counter = folder / "counter"

    def start(self, **options: Any) -> Worker:
        """One worker, contending when this returns. See worker.py for what the options do."""
        (worker,) = self.ready(options)
        worker.go()
        return worker

    def ready(self, *options: dict[str, Any]) -> list[Worker]:
        """Several workers that have started, connected to nothing yet, and begin with ``go()``.

        A process takes its time to start: no lease that has begun should have to wait for that.
        """
        workers = [self._spawn(**given) for given in options]
        for worker in workers:
            worker.saw("ready")
        return workers

    def _spawn(self, **options: Any) -> Worker:
        given = {
            "actor": f"worker-{len(self.workers)}", "url": self.url, "key": KEY, "counter": str(self._counter),
            "mode": "threads", "expire": 5.0, "wait": 60.0, "renew": False, "rounds": 1, "section": 0.0,
            "think": 0.0, "hold": False, **options,
        }  # fmt: skip
        worker = Worker(given["actor"], [sys.executable, str(WORKER), json.dumps(given)], self.history)
        self.workers.append(worker)
        return worker

    @property
    def counter(self) -> int:
        """What all sections have counted up."""
        return int(self._counter.read_bytes() or b"0") if self._counter.exists() else 0

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


@pytest.fixture
def lab(redis_url: str, tmp_path: Path) -> Iterator[Lab]:
    laboratory = Lab(redis_url, tmp_path)
    yield laboratory
    laboratory.close()


@pytest.fixture
def own_lab(make_redis: Callable[..., RedisServer], tmp_path: Path) -> Iterator[tuple[Lab, RedisServer]]:
    """A laboratory with a server of its own, to restart and to freeze."""
    server = make_redis()
    laboratory = Lab(server.url, tmp_path)
    yield laboratory, server
    server.resume()
    laboratory.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as connected:
        yield connected


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    """A proxy in front of the session's (empty) Redis."""
    with Proxy(redis_server.port) as running:
        yield running


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], Proxy]]:
    with ExitStack() as proxies:
        yield lambda port: proxies.enter_context(Proxy(port))


def in_both_colours(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make two tests of a coroutine over ``harness``: with threads, and with asyncio, on the store that is configured."""

    @pytest.mark.parametrize("mode", sorted(HARNESSES))
    def run(mode: str, **fixtures: Any) -> None:
        harness = HARNESSES[mode](registry().store("default"))
        harness.run(test(harness, **fixtures))

    # What pytest reads: the test's own arguments, without the harness, and the mode.
    signature = inspect.signature(test)
    own = [parameter for name, parameter in signature.parameters.items() if name != "harness"]
    mode = inspect.Parameter("mode", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*own, mode], return_annotation=None)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.pytestmark += getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    return run


def left_behind(client: redis.Redis, name: str = NAME) -> dict[str, int]:
    """What a lock has in Redis besides its fence: nothing, once everybody has gone."""
    found = {name: client.exists(name)}
    found |= {key: client.zcard(key) for key in (f"{{{name}}}:queue", f"{{{name}}}:waits")}
    return {key: count for key, count in found.items() if count}
