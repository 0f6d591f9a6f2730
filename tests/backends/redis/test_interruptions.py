"""Exceptions out of signal handlers, at any byte code: a worker's time limit, Ctrl-C. Nobody else pays for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import Lease, lock
from distlock_web.backends.redis.transport.subscription import Subscription
from distlock_web.core.registry import registry
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import left_behind, queued, waiters
from tests.support.waiting import LONG, SOON, eventually

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "support" / "programs" / "interrupted.py"
#: Of the program's leases.
EXPIRE = 3.0


def interrupted(url: str, seconds: float, contenders: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), url, str(seconds), str(contenders), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(found)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_a_lock_that_is_interrupted_anywhere_is_not_left_behind(redis_url: str, seed: int) -> None:
    """Once in each of some thousand blocks: taken, held, given back.

    The interpreter may raise between the call of ``__exit__`` and its first line: that no code of ours can help.
    """
    found = interrupted(redis_url, 5.0, 0, seed)
    assert found["hits"] > 100
    assert [place for place in found["left"] if "lock.py" not in place or "__exit__" not in place.split(" < ")[0]] == []
    assert sum(found["left"].values()) < 0.02 * found["hits"]
    assert {name: found[name] for name in ("lost slots", "waiters", "held", "errors")} == {
        "lost slots": 0,
        "waiters": 0,
        "held": [],
        "errors": [],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [3, 4])
def test_others_who_wait_meanwhile_wait_a_lease_at_most(redis_url: str, seed: int) -> None:
    """A mutex stayed locked, or nobody read any more: threads hung for good, and places of the pool were lost."""
    found = interrupted(redis_url, 7.0, 3, seed)
    assert found["hits"] > 100
    assert found["sections"] > found["hits"]
    assert found["hanging"] == []
    assert found["contenders' errors"] == []
    assert found["longest"] < EXPIRE + 2.0
    names = ("lost slots", "waiting for a connection", "waiters", "asleep", "held")
    assert {name: found[name] for name in names} == {
        "lost slots": 0,
        "waiting for a connection": 0,
        "waiters": 0,
        "asleep": 0,
        "held": [],
    }


class Limit(BaseException):
    """A worker's time limit."""


@pytest.mark.parametrize("whose", ["another's", "its own"])
@pytest.mark.usefixtures("redis_store")
def test_what_an_interrupted_reader_has_read_is_not_lost(
    redis_client: redis.Redis, beside: Beside, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The other waiter was handed its lock at once, and learned of it a lease later."""
    read = Subscription.read
    readers: list[str] = []
    armed = threading.Event()

    def interrupt(self: Subscription, seconds: float) -> Any:
        readers.append(threading.current_thread().name)
        found = read(self, seconds)
        if found and armed.is_set() and readers[-1] in holders:
            armed.clear()
            raise Limit
        return found

    def wait(key: str) -> Lease:
        threading.current_thread().name = key
        return lock(key, expire=LONG, wait=LONG).acquire()

    monkeypatch.setattr(Subscription, "read", interrupt)
    holders = {key: unrelated(key) for key in ("a", "b")}
    waiting = {key: beside(wait, key) for key in holders}
    for key in holders:
        queued(redis_client, key)
    listener = registry().store("default").backend.server.listener  # type: ignore[attr-defined]
    eventually(lambda: len(listener._threads_asleep) == 2, "both sleep")
    readers.clear()
    eventually(lambda: len(readers) > 2 and readers[-1] in holders, "one of them reads")
    reader = readers[-1]
    other = "a" if reader == "b" else "b"
    armed.set()
    first, second = (other, reader) if whose == "another's" else (reader, other)
    holders[first].release()
    with pytest.raises(Limit):
        waiting[reader].result(SOON)
    eventually(lambda: waiters(redis_client, f"disLock:{reader}") == 0, "it waits no longer")
    if whose == "its own":
        eventually(lambda: left_behind(redis_client, f"disLock:{reader}") == {}, "what it was handed is given on")
    holders[second].release()
    waiting[other].result(SOON).release()
