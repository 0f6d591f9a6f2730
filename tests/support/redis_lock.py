"""One lock in Redis that the tests of a module share: who takes it, who waits for it, what it leaves behind."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import DistLockError, Lease, configure, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.locks.lock import Lock
from distlock_web.testing.harness import Harness

from .callers import unrelated
from .waiting import SLACK, eventually

#: The lock that everybody in such a test contends for, and its keys in Redis.
KEY = "lab"
NAME = f"disLock:{KEY}"


def the_lock(**options: object) -> Lock:
    return lock(KEY, **{"expire": 30.0, **options})  # type: ignore[arg-type]


async def warm_up(harness: Harness) -> None:
    """Connected, and the scripts are known: the next request is the one that the test is about."""
    async with harness.inside(lock("other")):
        pass


#: Seconds after which every refusal has come: two tries and the undo, each may connect and sign in.
BOUND = 6.0 + SLACK


async def refused(harness: Harness, url: str, kind: type[DistLockError], *words: str, **options: object) -> str:
    """Taking a lock at this address is refused with this error, which says these words, and in time. Its text."""
    store = configure({"default": {"LOCATION": url, "OPTIONS": options}}).store("default")
    harness.store = store
    begun = now()
    with pytest.raises(DistLockError) as caught:
        await harness.acquire(the_lock(wait=60))
    assert isinstance(caught.value, kind), caught.value
    for word in words:
        assert word in str(caught.value)
    assert "secret" not in str(caught.value), "a password in a message ends in a log"
    assert now() - begun < BOUND
    return str(caught.value)


def held(client: redis.Redis, name: str = NAME) -> dict[str, str] | None:
    """What the lock's key says; None: there is none."""
    value = client.get(name)
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else str(value)
    fields = ("owner", "state", "fence", "since", "before", "holder")
    return dict(zip(fields, text.split(" ", 5), strict=True))


def fence_of(client: redis.Redis, name: str = NAME) -> str | None:
    lock = held(client, name)
    return lock["fence"] if lock else None


def documented_rules() -> list[str]:
    """What docs/redis.md says that a user for locks has to be allowed, for ``ACL SETUSER name on >secret``."""
    page = (Path(__file__).parents[2] / "docs/redis.md").read_text()
    [rules] = re.findall(r"^ACL SETUSER locks on >secret (.*)", page, re.M)
    return rules.split()


def hold_for_another(client: redis.Redis, milliseconds: int, name: str = NAME) -> None:
    """Somebody has the lock, who never says a word."""
    client.set(name, f"{'f' * 40} contended 1 1 - x", px=milliseconds)


def waiters(client: redis.Redis, name: str = NAME) -> int:
    """How many wait for the lock, in all processes."""
    return sum(client.zcard(line) for line in client.scan_iter(f"{glob_escape(f'{{{name}}}:queue:')}*", count=10_000))


def glob_escape(text: str) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


async def until_queued(harness: Harness, client: redis.Redis, count: int = 1) -> None:
    """Wait until so many wait for the lock; asked past the proxy."""

    async def seen() -> bool:
        return waiters(client) == count

    await harness.until(seen)


def queued(client: redis.Redis, key: str, number: int = 1) -> None:
    """Return when so many wait for the lock."""
    eventually(lambda: waiters(client, f"disLock:{key}") == number, f"{number} wait for {key}")


def contend() -> float:
    """One waits for the other; the seconds from the release to the second one's lease."""
    first = unrelated(KEY, expire=30.0)
    second: list[tuple[float, Lease]] = []

    def wait() -> None:
        lease = unrelated(KEY, expire=30.0, wait=60)
        second.append((now(), lease))

    waiting = threading.Thread(target=wait)
    waiting.start()
    listener: Any = registry().store("default").backend.server.listener  # type: ignore[attr-defined]

    def queued_here() -> bool:  # in this process: forked children contend as well
        return any(waiter.sent_at is not None for waiter in list(listener.waiters.values()))

    # A wait that has failed never stands in the queue: then the last lines say what there is.
    eventually(lambda: queued_here() or not waiting.is_alive(), "the other one waits")
    released = now()
    first.release()
    waiting.join()
    at, lease = second[0]
    lease.release()
    return at - released


def left_behind(client: redis.Redis, name: str = NAME) -> dict[str, int]:
    """What a lock has in Redis besides its fence: nothing, once everybody has gone."""
    lock = held(client, name)
    found = {
        name: int(lock is not None and lock["state"] not in ("released", "revoked")),
        "waiters": waiters(client, name),
    }
    return {key: count for key, count in found.items() if count}
