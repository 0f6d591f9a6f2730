"""The listening thread: it comes with the first wait, goes with the last, and its loss costs one lease at most."""

from __future__ import annotations

import contextvars
import gc
import random
import threading
import time
import weakref

import pytest
import redis

from distlock_web import lock
from distlock_web.backends.redis.transport import listener as listener_module
from distlock_web.core.runtime import now
from distlock_web.locks.lease import scope_of
from tests.support.callers import threads, unrelated
from tests.support.redis_lock import KEY, contend, left_behind
from tests.support.waiting import eventually

LISTENER, WATCHDOG = "distlock-listener", "distlock-watchdog"


def test_the_listener_ends_with_the_last_wait(
    redis_store: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "IDLE_TIMEOUT", 1.0)
    unrelated(KEY, wait=5).release()
    assert threads(LISTENER) == 0, "a free lock needs nobody to listen"
    contend()
    assert threads(LISTENER) == 1
    eventually(lambda: threads(LISTENER) == 0, "the listener ends")
    eventually(lambda: redis_client.pubsub_channels("distlock:*") == [], "its connection is closed")
    contend()
    assert threads(LISTENER) == 1, "a new wait has a new one"


@pytest.mark.slow
def test_a_listener_that_ends_does_not_disturb_its_successor(redis_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides to end at the very moment in which the next one is wanted, again and again."""
    idle = 0.005
    monkeypatch.setattr(listener_module, "IDLE_TIMEOUT", idle)
    waits = []
    for _ in range(100):
        waits.append(contend())
        time.sleep(random.random() * 2 * idle)
    assert max(waits) < 10.0
    eventually(lambda: threads(LISTENER) == 0, "the last one ends")


def test_leases_and_their_locks_are_garbage_when_they_are_over(redis_store: str) -> None:
    first = unrelated(KEY, renew=True)
    over = weakref.ref(scope_of(first))
    first.release()
    del first
    gc.collect()
    assert over() is None


@pytest.mark.nightly
def test_1000_acquisitions_and_1000_kills_of_the_listening_connection(
    redis_store: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the wait, during it, at the hand-over: none waits longer than one lease."""
    monkeypatch.setattr(listener_module, "RECONNECT_AFTER", 0.001)  # or most of the time there would be nothing to kill
    expire, goal = 2.0, 1000
    waits: list[float] = []
    counter, kills = [0], [0]

    def contender() -> None:
        dice = random.Random()
        while len(waits) < goal or kills[0] < goal:
            begun = now()
            with lock(KEY, expire=expire, wait=60):
                waits.append(now() - begun)
                seen = counter[0]
                time.sleep(dice.random() * 0.002)
                counter[0] = seen + 1
            time.sleep(dice.random() * 0.002)

    contenders = [threading.Thread(target=contextvars.Context().run, args=(contender,)) for _ in range(3)]
    for thread in contenders:
        thread.start()
    while any(thread.is_alive() for thread in contenders):
        kills[0] += redis_client.client_kill_filter(_type="pubsub", skipme=True)
        time.sleep(random.random() * 0.003)
    assert counter == [len(waits)]
    assert max(waits) < expire + 5.0
    assert left_behind(redis_client) == {}
