"""Locks with several holders, where Redis is in the way of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from distlock_web import LockBusy, lock
from distlock_web.core.backend import SHARED, Busy, Claim, Granted
from distlock_web.core.registry import Store, registry
from distlock_web.core.runtime import THREADS, drive, new_token, now
from distlock_web.ops.held_locks import force_release, held_locks
from tests.support.callers import Beside, unrelated
from tests.support.crowd import StartCrowd
from tests.support.redis_lock import KEY, NAME, left_behind, queued
from tests.support.waiting import LONG, SOON, eventually


def test_one_who_never_hears_of_its_places_keeps_them_from_nobody_else_for_longer_than_a_lease(
    redis_client: redis.Redis, redis_store: Store, beside: Beside
) -> None:
    """Its process is stopped: it is handed a place, but not a second one after that has ended."""
    lease = 1.0
    holder = unrelated(KEY)
    with stopped_process(redis_client, waiters=8, lease=lease):
        waiting = beside(lock(KEY, limit=2, expire=LONG, wait=LONG).acquire)
        eventually(lambda: redis_client.zcard(f"{{{NAME}}}:queue") == 2, "somebody waits behind it")
        begun = now()
        holder.release()
        assert sum(row.lock.holder == "stopped" for row in held_locks()) == 2, "both places are its"
        waiting.result(SOON).release()
        took = now() - begun
        assert took < 3 * lease, "others of its eight had the places after that"


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


def test_a_writer_that_died_in_the_queue_keeps_out_no_reader(
    redis_client: redis.Redis, redis_store: Store, crowd: StartCrowd
) -> None:
    """Its process listens no more: the readers pass it by, though it would not be admitted."""
    reader = unrelated(KEY, shared=True)
    writers = crowd(count=1, expire=LONG)
    queued(redis_client, KEY)
    with pytest.raises(LockBusy):
        unrelated(KEY, shared=True, wait=0)
    writers.kill()
    [process] = redis_client.zrange(f"{{{NAME}}}:queue", 0, -1)
    eventually(lambda: not redis_client.pubsub_numsub(f"distlock:wake:{process!s}")[0][1], "it listens no more")
    unrelated(KEY, shared=True, wait=0).release()
    reader.release()


def test_a_stopped_process_whose_place_is_released_by_force_is_not_handed_it_again(
    redis_client: redis.Redis, redis_store: Store, beside: Beside
) -> None:
    holder = unrelated(KEY)
    with stopped_process(redis_client, waiters=8):
        waiting = beside(lock(KEY, limit=2, expire=LONG, wait=LONG).acquire)
        eventually(lambda: redis_client.zcard(f"{{{NAME}}}:queue") == 2, "somebody waits behind it")
        holder.release()
        first, _second = held_locks()
        force_release(registry(), first, "a test")
        waiting.result(SOON).release()


def test_the_index_and_the_key_end_with_the_last_holder(redis_client: redis.Redis, redis_store: Store) -> None:
    long, short = unrelated(KEY, limit=2, expire=3600), unrelated(KEY, limit=2, expire=LONG)
    long.release()
    end = redis_client.zscore("disLock:~held", NAME) or 0
    assert end / 1e6 <= time.time() + LONG
    assert redis_client.pttl(NAME) <= 1000 * LONG
    short.release()


@contextmanager
def stopped_process(
    client: redis.Redis, waiters: int, lease: float = LONG, limit: int = 2, process: str = "f" * 16
) -> Iterator[None]:
    """One that listens and says nothing, and the first places in the queue are its waiters'."""
    pubsub = client.pubsub()  # type: ignore[no-untyped-call]
    pubsub.subscribe(f"distlock:wake:{process}")
    eventually(lambda: client.pubsub_numsub(f"distlock:wake:{process}")[0][1], "it listens")
    line = f"{{{NAME}}}:queue:{process}"
    for number in range(waiters):
        client.zadd(line, {f"{process}{number:036}/{limit} {int(lease * 1000)} stopped": number})
    client.zadd(f"{{{NAME}}}:queue", {process: 0})
    yield
    pubsub.close()


def test_the_extension_of_a_share_takes_no_lock_off_the_listing(redis_client: redis.Redis, redis_store: Store) -> None:
    """It begins with a write that changes nothing: it removed the name of a lock."""
    with lock("-", prefix="", expire=LONG), lock("shared", prefix="", limit=2, expire=LONG) as lease:
        lease.extend(2 * LONG)
        assert {row.lock.name for row in held_locks()} == {"-", "shared"}


def readers_of(process: str, number: int = 100) -> list[Claim]:
    """So many that hold the lock together."""
    port = registry().store("default").port(THREADS)
    claims = [Claim(NAME, new_token(process).limited(SHARED), LONG, "a reader") for _ in range(number)]
    for claim in claims:
        assert isinstance(drive(port.acquire(claim, 0)), Granted)
    return claims


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_one_of_many_readers_that_leaves_does_not_read_the_others(
    redis_client: redis.Redis, redis_store: str, waits: bool, own: bool
) -> None:
    """A thousand that left one by one cost the server seconds. ``waits``: a writer does; ``own``: of their process."""
    store = registry().store("default")
    port, writer = store.port(THREADS), Claim(NAME, new_token(store.ident), LONG, "a writer")
    readers = readers_of(store.ident if own else "e" * 16)
    if waits:
        assert isinstance(drive(port.acquire(writer, LONG)), Busy)
    redis_client.config_resetstat()
    for claim in readers:
        assert drive(port.release(claim)) is None
    assert redis_client.info("commandstats")["cmdstat_hgetall"]["calls"] <= 40, "the last of them do: they are few"
    if waits:
        assert drive(port.release(writer)) is None, "it was handed the lock"
    assert redis_client.keys("*lab*") == []
    assert redis_client.zscore("disLock:~held", NAME) is None


def test_one_of_many_readers_that_leaves_is_gone_for_good(redis_client: redis.Redis, redis_store: str) -> None:
    """Whoever has left, was late or was released by force is told the same as beside few."""
    port = registry().store("default").port(THREADS)
    readers = readers_of("e" * 16)
    first, second, third, fourth = readers[:4]
    assert drive(port.release(first)) is None
    assert drive(port.extend([first])) == ["expired"]
    assert drive(port.revoke(NAME, fence_of_share(redis_client, second)))
    assert drive(port.release(second)) == "revoked"
    ends, rest = str(redis_client.hget(NAME, third.token)).split(" ", 1)
    redis_client.hset(NAME, third.token, f"{int(ends) - 100_000_000} {rest}")
    assert drive(port.release(third)) == "expired"
    assert drive(port.release(fourth, 1.0)) is None
    assert " cooldown " in str(redis_client.hget(NAME, fourth.token))


def fence_of_share(client: redis.Redis, claim: Claim) -> int:
    return int(str(client.hget(NAME, claim.token)).split(" ")[2])


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("state", "seconds", "hears"),
    [
        ("revoked", LONG, "the grant"),
        ("released", LONG, "the grant"),
        ("held", -1, "the grant"),
        ("granted", -1, "the grant"),
        ("cooldown", -1, "the grant"),
        ("cooldown", 5, "that it shall ask"),
        ("held", LONG / 2, "that it shall ask"),
    ],
)
def test_who_waits_hears_where_no_other_of_many_holds_the_lock_as_long(
    redis_client: redis.Redis, redis_store: str, state: str, seconds: float, waits: bool, hears: str
) -> None:
    """Some fields hold nothing. And who sleeps until the end of the lease that is given back must not do so."""
    port = registry().store("default").port(THREADS)
    *others, last = readers_of("e" * 16, 33)
    writer = Claim(NAME, new_token("f" * 16), LONG, "a writer")
    with redis_client.pubsub() as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(f"distlock:wake:{'f' * 16}")
        assert pubsub.get_message(timeout=SOON)
        if waits:
            assert isinstance(drive(port.acquire(writer, LONG)), Busy)
        ends = round((time.time() + seconds) * 1_000_000)
        for claim in others:
            rest = str(redis_client.hget(NAME, claim.token)).split(" ", 2)[2]
            redis_client.hset(NAME, claim.token, f"{ends} {state} {rest}")
        assert drive(port.release(last)) is None
        if waits:
            heard = next(said for _ in range(3) if (said := pubsub.get_message(timeout=SOON)) and said["data"])["data"]
            assert hears == ("that it shall ask" if heard.split(" ")[1] == "-" else "the grant")
    if hears == "the grant":
        assert [row.lock.holder for row in held_locks()] == ["a writer"] * waits
        assert (redis_client.zscore("disLock:~held", NAME) is None) == (not waits), "it is listed as long as it is held"


def test_a_reader_behind_a_writer_that_died_enters_when_one_of_many_leaves(
    redis_client: redis.Redis, redis_store: str, beside: Beside
) -> None:
    readers = readers_of("e" * 16)
    with stopped_process(redis_client, waiters=1, limit=1):
        waiting = beside(lock(KEY, shared=True, expire=LONG, wait=LONG).acquire)
        eventually(lambda: redis_client.zcard(f"{{{NAME}}}:queue") == 2, "it waits behind the writer")
        registry_port = registry().store("default").port(THREADS)
        drive(registry_port.release(readers[0]))
        assert redis_client.zcard(f"{{{NAME}}}:queue") == 2, "the writer lives"
    eventually(lambda: not redis_client.pubsub_numsub(f"distlock:wake:{'f' * 16}")[0][1], "it listens no more")
    drive(registry_port.release(readers[1]))
    waiting.result(SOON).release()
