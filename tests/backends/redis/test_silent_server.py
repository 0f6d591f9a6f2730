"""A server that hangs: one request pays for knowing it, nothing stays behind of what was asked, and it ends at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, configure
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, the_lock
from tests.support.waiting import LONG, SOON

pytestmark = pytest.mark.slow

TIMEOUT = 1.0


@pytest.fixture
def server(make_redis: Callable[..., RedisServer]) -> Iterator[RedisServer]:
    """The default store is a server of this test alone, of which answers are expected within ``TIMEOUT``."""
    running = make_redis()
    configure({"default": {"LOCATION": running.url, "OPTIONS": {"socket_timeout": TIMEOUT}}})
    yield running
    running.resume()


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as connected:
        yield connected


async def refusal(harness: Harness, **options: Any) -> float:
    """The seconds after which an acquisition is refused."""
    begun = now()
    with pytest.raises(BackendUnavailable):
        await harness.acquire(the_lock(**options))
    return now() - begun


@in_both_modes
async def test_a_request_that_is_refused_leaves_nothing_to_do(harness: Harness, server: RedisServer) -> None:
    """It left two cancellations for later, and thousands of them pushed out the releases that waited there."""
    await harness.release(await harness.acquire(the_lock()))
    server.pause()
    await refusal(harness)
    backend: Any = harness.store.backend
    postponed = len(backend.server.outage._postponed)
    for wait in (0, LONG):
        await refusal(harness, wait=wait)
    assert len(backend.server.outage._postponed) == postponed
    assert len(backend.server.ambiguous) <= 1
    assert not backend.server.listener.waiters, "nobody waits who was told so"


@pytest.mark.timing
def test_many_who_ask_at_once_of_a_silent_server_wait_together(server: RedisServer, beside: Beside) -> None:
    """Not one after the other: the pool has room for two."""
    configure({"default": {"LOCATION": server.url, "OPTIONS": {"socket_timeout": TIMEOUT, "max_connections": 2}}})
    unrelated(KEY).release()
    server.pause()
    begun = now()
    for asking in [beside(unrelated, f"key:{number}") for number in range(8)]:
        with pytest.raises(BackendUnavailable):
            asking.result(SOON)
    assert now() - begun < 4 * TIMEOUT


def test_a_timer_that_interrupts_the_thread_prolongs_no_time_out(server: RedisServer) -> None:
    """Python reads on after a signal, with all of the kernel's time again: beside a sampler it never gave up."""
    program = """
import signal, sys
from distlock_web import BackendUnavailable, configure, lock
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
configure({"default": {"LOCATION": sys.argv[1], "OPTIONS": {"socket_timeout": 0.5}}})
lock("a").acquire().release()
print("ready", flush=True)
sys.stdin.readline()
try:
    lock("a").acquire()
except BackendUnavailable:
    print("refused")
"""
    command = [sys.executable, "-c", program, server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        server.pause()
        try:
            assert process.communicate("go on\n", timeout=SOON)[0] == "refused\n"
        finally:
            process.kill()
