"""One lock in Redis that the tests of a module share: who takes it, who waits for it, what it leaves behind."""

from __future__ import annotations

import threading
import time

import redis

from distlock_web import Lease, lock
from distlock_web.core.runtime import now
from distlock_web.locks.lock import Lock
from distlock_web.testing.harness import Harness

from .callers import unrelated
from .waiting import eventually

#: The lock that everybody in such a test contends for, and its keys in Redis.
KEY = "lab"
NAME = f"disLock:{KEY}"


def the_lock(**options: object) -> Lock:
    return lock(KEY, **{"expire": 30.0, **options})  # type: ignore[arg-type]


async def warm_up(harness: Harness) -> None:
    """Connected, and the scripts are known: the next request is the one that the test is about."""
    async with harness.inside(lock("other")):
        pass


async def until_queued(harness: Harness, client: redis.Redis, count: int = 1) -> None:
    """Wait until so many wait for the lock; asked past the proxy."""

    async def seen() -> bool:
        return client.zcard(f"{{{NAME}}}:queue") == count

    await harness.until(seen)


def queued(client: redis.Redis, key: str, number: int = 1) -> None:
    """Return when so many wait for the lock."""
    eventually(lambda: client.zcard(f"{{disLock:{key}}}:queue") == number, f"{number} wait for {key}")


def contend() -> float:
    """One waits for the other; the seconds from the release to the second one's lease."""
    first = unrelated(KEY, expire=30.0)
    second: list[tuple[float, Lease]] = []

    def wait() -> None:
        lease = unrelated(KEY, expire=30.0, wait=60)
        second.append((now(), lease))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.01)
    released = now()
    first.release()
    waiting.join()
    at, lease = second[0]
    lease.release()
    return at - released


def left_behind(client: redis.Redis, name: str = NAME) -> dict[str, int]:
    """What a lock has in Redis besides its fence: nothing, once everybody has gone."""
    found = {name: client.exists(name)}
    found |= {key: client.zcard(key) for key in (f"{{{name}}}:queue", f"{{{name}}}:waits")}
    return {key: count for key, count in found.items() if count}
