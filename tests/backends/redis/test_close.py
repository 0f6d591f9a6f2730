"""A store that is closed at any moment of a wait: no wake-up is lost, and no lease is believed longer than it lasts."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.backends.redis.port import RedisPort
from distlock_web.backends.redis.transport.listener import Listener
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY, NAME, left_behind, queued
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.usefixtures("redis_store")

#: Where a waiter stands when the store is closed, and the lock given back: in the method's name, before or after it.
MOMENTS = {
    "its question is on its way": (RedisPort, "_ask_for", "after"),
    "between its answer and its sleep": (RedisPort, "wait", "before"),
    "about to sleep": (Listener, "sleep", "before"),
    "awake, and about to ask": (Listener, "sleep", "after"),
}


def interpose(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str, work: Callable[[], None]) -> None:
    """Do this once in the thread ``waiter``, before or after the method."""
    method, done = getattr(owner, name), threading.Event()

    def mine() -> bool:
        return threading.current_thread().name == "waiter" and not done.is_set() and not done.set()

    async def interposed(*args: Any) -> Any:
        if when == "before" and mine():
            work()
        answer = await method(*args)
        if when == "after" and mine():
            work()
        return answer

    monkeypatch.setattr(owner, name, interposed)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("others_wait", [True, False])
def test_a_close_loses_no_wake_up(
    redis_client: redis.Redis, beside: Beside, monkeypatch: pytest.MonkeyPatch, moment: str, others_wait: bool
) -> None:
    """It slept for the whole lease though the lock was free."""
    holder, other = unrelated(KEY), unrelated("other")
    waiting = None
    if others_wait:
        waiting = beside(lock("other", expire=LONG, wait=LONG).acquire)
        queued(redis_client, "other")
    else:
        beside(lock("other", expire=LONG, wait=0.01).try_acquire).result(SOON)  # there is a listener

    def close_and_release() -> None:
        registry().close()
        if others_wait:
            listener = registry().store("default").backend.server.listener  # type: ignore[attr-defined]
            eventually(lambda: listener.ready, "there is a listening connection again, but another one")
        holder.release()

    owner, name, when = MOMENTS[moment]
    interpose(monkeypatch, owner, name, when, close_and_release)

    def acquire() -> Any:
        threading.current_thread().name = "waiter"
        return lock(KEY, expire=LONG, wait=1.0 if moment.startswith("awake") else LONG).acquire()

    lease = beside(acquire).result(SOON)
    lease.raise_if_lost()
    lease.release()
    other.release()
    if waiting is not None:
        waiting.result(SOON).release()


# What could not be sent ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_end_of_the_program_sends_what_could_not_be_sent(
    redis_server: RedisServer, redis_client: redis.Redis, make_proxy: Callable[[int], Proxy]
) -> None:
    proxy = make_proxy(redis_server.port)
    program = subprocess.Popen(
        [sys.executable, "-c", RELEASES_LATE, proxy.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "held\n"
    proxy.swallow()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "released\n"
    proxy.swallow(False)
    program.communicate("\n", timeout=LONG)
    assert left_behind(redis_client) == {}


RELEASES_LATE = """
import sys
from distlock_web import BackendUnavailable, configure, lock
from distlock_web.kit import outage
outage.RETRY_AFTER = 60.0  # only its end sends it
configure({"default": {"LOCATION": sys.argv[1], "OPTIONS": {"socket_timeout": 0.3}}})
lease = lock("lab", expire=60).acquire()
print("held", flush=True)
sys.stdin.readline()
try:
    lease.release()
except BackendUnavailable:
    print("released", flush=True)
sys.stdin.readline()
"""


def test_a_release_that_is_refused_takes_effect_with_the_first_answer(
    redis_server: RedisServer, redis_client: redis.Redis, make_proxy: Callable[[int], Proxy]
) -> None:
    """It was sent a time-out after its attempt, as if a copy of an acquisition could be on its way."""
    proxy = make_proxy(redis_server.port)
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": 1.0}}})
    lease = unrelated(KEY, expire=LONG)
    proxy.swallow()
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            unrelated("other")
    backend: Any = registry().store("default").backend
    with pytest.raises(BackendUnavailable):
        lease.release()
    due = [item.due for item in backend.server.outage._postponed if item.work.args[0].name == NAME]
    assert due
    assert max(due) <= now(), "as soon as it answers"
    proxy.swallow(False)
    eventually(lambda: left_behind(redis_client) == {}, "it is given back")


def test_a_release_of_a_lease_that_was_extended_is_kept_until_that_ends(
    redis_server: RedisServer, make_proxy: Callable[[int], Proxy]
) -> None:
    """It was dropped when the lease would have ended that had been asked for first: the lock was held for an hour."""
    proxy = make_proxy(redis_server.port)
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": 1.0}}})
    lease = unrelated(KEY, expire=10)
    lease.extend(3600)
    proxy.swallow()
    with pytest.raises(BackendUnavailable):
        lease.release()
    backend: Any = registry().store("default").backend
    assert max(item.until for item in backend.server.outage._postponed) > now() + 3500
    proxy.swallow(False)
    eventually(lambda: not backend.server.outage._postponed, "it is given back")
