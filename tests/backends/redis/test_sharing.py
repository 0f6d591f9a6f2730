"""Locks with several holders, where Redis is in the way of them."""

from __future__ import annotations

import pytest
import redis

from distlock_web import ConfigurationError, lock
from distlock_web.core.registry import Store
from distlock_web.core.runtime import now
from distlock_web.web.held_locks import held_locks
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import KEY, NAME, left_behind
from tests.support.waiting import LONG, SOON, eventually


def test_a_hash_of_somebody_elses_is_not_touched(redis_client: redis.Redis, redis_store: Store) -> None:
    redis_client.hset(NAME, mapping={"a": "b"})
    for options in ({}, {"shared": True}, {"limit": 2, "wait": 1}):
        with pytest.raises(ConfigurationError, match="not a lock"):
            lock(KEY, **options).acquire()
    assert held_locks() == []
    assert redis_client.hgetall(NAME) == {"a": "b"}


def test_one_who_never_hears_of_its_places_keeps_them_from_nobody_else_for_longer_than_a_lease(
    redis_client: redis.Redis, redis_store: Store, beside: Beside
) -> None:
    """Its process is stopped: it is handed a place, but not a second one after that has ended."""
    lease = 1.0
    holder = unrelated(KEY)
    process = "f" * 16  # that listens, and says nothing
    pubsub = redis_client.pubsub()  # type: ignore[no-untyped-call]
    pubsub.subscribe(f"distlock:wake:{process}")
    eventually(lambda: redis_client.pubsub_numsub(f"distlock:wake:{process}")[0][1], "it listens")
    line = f"{{{NAME}}}:queue:{process}"
    for number in range(8):
        redis_client.zadd(line, {f"{process}{number:036}/2 {int(lease * 1000)} stopped": number})
    redis_client.zadd(f"{{{NAME}}}:queue", {process: 0})
    waiting = beside(lock(KEY, limit=2, expire=LONG, wait=LONG).acquire)
    eventually(lambda: redis_client.zcard(f"{{{NAME}}}:queue") == 2, "somebody waits behind it")
    begun = now()
    holder.release()
    assert redis_client.hlen(NAME) == 2, "both places are its"
    waiting.result(SOON).release()
    took = now() - begun
    assert took < 3 * lease, "others of its eight had the places after that"
    pubsub.close()


def test_the_fence_of_a_writer_exceeds_those_of_readers_that_entered_together(
    redis_client: redis.Redis, redis_store: Store
) -> None:
    """Several that enter at once have their fences from one reading of the clock."""
    readers = [unrelated(KEY, shared=True) for _ in range(20)]
    fences = [reader.fence or 0 for reader in readers]
    redis_client.zadd("disLock:~held", {"{fences}": -(max(fences) + 50_000_000)})  # as if its clock was set back
    late = unrelated(KEY, shared=True)
    for reader in [*readers, late]:
        reader.release()
    writer = unrelated(KEY)
    assert (writer.fence or 0) > (late.fence or 0) > max(fences)
    writer.release()
    assert left_behind(redis_client) == {}
