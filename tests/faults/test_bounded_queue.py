"""One runs, one waits, the others are skipped: the last change is seen all the same."""

from __future__ import annotations

import subprocess
import sys

import redis

from tests.support.lab import Lab
from tests.support.redis_lock import waiters
from tests.support.waiting import eventually

CALLERS, CALLS = 6, 15

PROGRAM = """
import sys, time
import redis
from distlock_web import configure, distributed_lockable

url = sys.argv[1]
configure({"default": {"LOCATION": url}})
client = redis.Redis.from_url(url)

@distributed_lockable(key="index", expire=60, wait=None, max_waiters=1, on_busy="skip")
def build_index():
    seen = client.get("changes")
    time.sleep(0.01)
    client.set("index", seen)
    client.incr("runs")

for _ in range(int(sys.argv[2])):
    client.incr("changes")
    build_index()
"""


def test_the_last_change_is_never_lost(redis_url: str, redis_client: redis.Redis) -> None:
    command = [sys.executable, "-c", PROGRAM, redis_url, str(CALLS)]
    processes = [subprocess.Popen(command) for _ in range(CALLERS)]
    assert [process.wait() for process in processes] == [0] * CALLERS
    changes, index, runs = (int(redis_client.get(key) or 0) for key in ("changes", "index", "runs"))
    assert changes == CALLERS * CALLS
    assert index == changes, "whoever was skipped counted on one that had read before"
    assert runs < changes, "nobody was skipped"


def test_a_waiter_that_died_takes_nobodys_place(lab: Lab, redis_client: redis.Redis) -> None:
    """Whoever is skipped counts on the one that waits."""
    holder = lab.start(hold=True, expire=60)
    holder.saw("acquired")
    killed = lab.start(expire=60)
    killed.saw("joined")
    killed.kill()
    eventually(lambda: len(redis_client.pubsub_channels("distlock:wake:*")) == 0, "Redis sees that it has gone")
    waiter = lab.start(max_waiters=1)
    eventually(lambda: waiters(redis_client) == 2, "the next one has the place")
    holder.go()
    assert waiter.join() == 0
