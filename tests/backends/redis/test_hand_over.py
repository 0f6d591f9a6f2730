"""A lock that passes from hand to hand: nobody believes to have it who has not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, LeaseLost, LockBusy, configure, lock
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Registry, registry
from distlock_web.core.runtime import THREADS, drive, new_token
from distlock_web.locks.lease import scope_of
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import KEY, NAME, held, left_behind, queued, waiters
from tests.support.waiting import LONG, SOON, eventually


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["NOREPLICAS", "READONLY"])
def test_a_release_that_the_server_refuses_lets_nobody_in(
    make_redis: Callable[..., RedisServer], beside: Beside, refused: str
) -> None:
    """It was published before the first write: a waiter entered a lock that the server still gave to another."""
    server = make_redis()
    configure({"default": {"LOCATION": server.url}})
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        first = unrelated("a", expire=2)
        waiting = beside(lock("a", expire=LONG, wait=LONG).acquire)
        queued(client, "a")
        if refused == "NOREPLICAS":
            client.config_set("min-replicas-to-write", 1)
        else:
            client.replicaof("127.0.0.1", "1")
        with pytest.raises(BackendUnavailable, match=refused):
            first.release()
        client.config_set("min-replicas-to-write", 0)
        client.replicaof("NO", "ONE")
        lease = waiting.result(SOON)
        assert owner_of(client) == (scope_of(lease).holds[0].claim.token, str(lease.fence))
        lease.release()


@pytest.mark.usefixtures("redis_store")
def test_a_notification_of_a_hand_over_that_is_older_than_the_stores_last_word_grants_nothing(
    redis_client: redis.Redis,
) -> None:
    """A process that was stopped for longer than its lease read the notification of it afterwards, and entered."""
    seconds, micros = redis_client.time()
    holder = unrelated("a")
    assert holder.fence is not None
    port = registry().store("default").port(THREADS)
    claim = Claim("disLock:a", new_token(), LONG)
    answer = drive(port.acquire(claim, LONG))
    assert isinstance(answer, Busy)
    ident = registry().store("default").ident
    redis_client.publish(f"distlock:wake:{ident}", f"{claim.token} {holder.fence - 1} {seconds * 1_000_000 + micros}")
    try:
        assert isinstance(drive(port.wait(claim, answer, 1.0)), Busy)
    finally:
        drive(port.cancel(claim))
    holder.raise_if_lost()
    holder.release()


@pytest.mark.usefixtures("redis_store")
def test_a_waiter_whose_place_was_evicted_has_the_lock_within_a_lease(
    redis_client: redis.Redis, beside: Beside
) -> None:
    holder = unrelated("a")
    waiting = beside(lock("a", expire=1, wait=LONG).acquire)
    queued(redis_client, "a")
    ident = registry().store("default").ident
    redis_client.delete(f"{{disLock:a}}:queue:{ident}")
    holder.release()
    lease = waiting.result(SOON)
    assert owner_of(redis_client) == (scope_of(lease).holds[0].claim.token, str(lease.fence))
    lease.release()


def owner_of(client: redis.Redis) -> tuple[str, str]:
    lock = held(client, "disLock:a")
    assert lock is not None
    return lock["owner"], lock["fence"]


@pytest.mark.usefixtures("redis_store")
def test_the_last_question_of_one_who_waits_leaves_no_place_behind(redis_url: str, redis_client: redis.Redis) -> None:
    """It took the free lock as if it had never waited; its own release then handed the lock to itself."""
    others = Registry({"default": {"LOCATION": redis_url}})
    port = registry().store("default").port(THREADS)
    holder, claim = Claim(NAME, new_token(), LONG), Claim(NAME, new_token(), LONG)
    stranger = others.store("default").port(THREADS)
    assert isinstance(drive(stranger.acquire(holder, 0)), Granted)
    assert isinstance(drive(port.acquire(claim, LONG)), Busy)
    redis_client.delete(holder.name, f"{{{holder.name}}}:queue")  # passed over: it did not listen just then
    redis_client.zrem("disLock:~held", holder.name)
    assert isinstance(drive(port.acquire(claim, 0.0)), Granted)
    assert waiters(redis_client, claim.name) == 0
    assert drive(port.release(claim)) is None
    assert redis_client.exists(claim.name) == 0
    others.close()


@pytest.mark.parametrize("prefix", ["", "reports:"], ids=["the same prefix", "another"])
def test_what_one_store_of_a_process_is_handed_no_other_gives_back(
    redis_server: RedisServer, redis_client: redis.Redis, beside: Beside, prefix: str
) -> None:
    """Both hear of it: who did not know the token took it for one that had gone, and let a second one in."""
    other = {"LOCATION": redis_server.url} | ({"PREFIX": prefix} if prefix else {})
    configure({"default": {"LOCATION": redis_server.url}, "other": other})
    elsewhere = unrelated("elsewhere", store="other")
    listening = beside(unrelated, "elsewhere", store="other", wait=LONG)
    queued_in = f"{prefix or 'disLock:'}elsewhere"
    eventually(lambda: waiters(redis_client, queued_in) == 1, "the other store listens")
    for _ in range(10):
        holder = unrelated(KEY)
        waiting = beside(unrelated, KEY, wait=LONG)
        queued(redis_client, KEY)
        holder.release()
        lease = waiting.result(SOON)
        threading.Event().wait(0.05)
        with pytest.raises(LockBusy):
            unrelated(KEY)
        lease.extend()
        lease.release()
    elsewhere.release()
    listening.result(SOON).release()


@pytest.fixture
def others(redis_server: RedisServer) -> Iterator[Registry]:
    """The store of another process, as it were."""
    found = Registry({"default": {"LOCATION": redis_server.url}})
    yield found
    found.close()


def claim_in(stores: Registry) -> Claim:
    return Claim(NAME, new_token(stores.store("default").ident), LONG, "x")


@pytest.mark.usefixtures("redis_store")
def test_one_that_is_told_before_its_answer_comes_believes_it(
    redis_client: redis.Redis, others: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the queue and does not know it yet; it is handed the lock, and told of that first."""
    port, backend = registry().store("default").port(THREADS), registry().store("default").backend
    server = backend.server  # type: ignore[attr-defined]
    holder, claim = claim_in(others), claim_in(registry())
    assert isinstance(drive(others.store("default").port(THREADS).acquire(holder, 0)), Granted)
    run = server.threads().run

    async def late(*args: Any, **options: Any) -> Any:
        answer = await run(*args, **options)
        if isinstance(answer, list) and answer[0] == 0 and waiters(redis_client) == 1:
            monkeypatch.undo()
            drive(others.store("default").port(THREADS).release(holder))
            eventually(lambda: server.listener.waiters[claim.token].news is not None, "it is told")
        return answer

    monkeypatch.setattr(server.threads(), "run", late)
    busy = drive(port.acquire(claim, LONG))
    assert isinstance(busy, Busy)
    assert isinstance(drive(port.wait(claim, busy, SOON)), Granted)
    assert drive(port.release(claim)) is None
    assert left_behind(redis_client) == {}


# A process that was handed the lock, and says nothing --------------------------------------------------------------


def revoke(client: redis.Redis) -> None:
    assert drive(registry().store("default").port(THREADS).revoke(NAME, int((held(client) or {})["fence"])))


def stand_in_queue(stores: Registry, number: int = 1) -> list[Claim]:
    """So many waiters of a process that listens, and never says a word again."""
    claims = [claim_in(stores) for _ in range(number)]
    for claim in claims:
        assert isinstance(drive(stores.store("default").port(THREADS).acquire(claim, LONG)), Busy)
    return claims


@pytest.mark.usefixtures("redis_store")
def test_a_release_of_what_was_revoked_lets_the_others_of_its_process_have_the_free_lock(
    redis_client: redis.Redis, others: Registry
) -> None:
    """They stood aside, for it had been handed the lock; they slept on beside a free one."""
    holder = unrelated(KEY)
    first, second = stand_in_queue(registry(), 2)
    [third] = stand_in_queue(others)
    holder.release()
    revoke(redis_client)
    assert (held(redis_client) or {})["owner"] == third.token
    assert drive(others.store("default").port(THREADS).release(third)) is None
    assert held(redis_client) is None
    port = registry().store("default").port(THREADS)
    assert drive(port.release(first)) is not None
    assert (held(redis_client) or {})["owner"] == second.token
    drive(port.cancel(second))


@pytest.mark.usefixtures("redis_store")
def test_a_release_by_force_hands_nothing_to_the_same_process_again(
    redis_client: redis.Redis, beside: Beside, others: Registry
) -> None:
    """A frozen process was handed the lock once for each of its waiters, and had to be released from it each time."""
    holder, frozen = unrelated(KEY), stand_in_queue(others, 3)
    behind = beside(unrelated, KEY, wait=LONG)
    queued(redis_client, KEY, 4)
    holder.release()
    assert (held(redis_client) or {})["owner"] == frozen[0].token
    revoke(redis_client)
    behind.result(SOON).release()


@pytest.mark.usefixtures("redis_store")
def test_where_nobody_else_waits_a_release_by_force_hands_it_to_the_next_of_the_same_process(
    redis_client: redis.Redis, beside: Beside
) -> None:
    holder = unrelated(KEY)
    first, second = [beside(unrelated, KEY, wait=LONG) for _ in range(2)]
    queued(redis_client, KEY, 2)
    holder.release()
    eventually(lambda: first.done() or second.done(), "one of them has it")
    revoke(redis_client)
    for lease in (first.result(SOON), second.result(SOON)):
        with suppress(LeaseLost):
            lease.release()
    assert left_behind(redis_client) == {}


@pytest.mark.usefixtures("redis_store")
def test_whoever_hears_that_it_is_done_leaves_its_queue(redis_client: redis.Redis) -> None:
    """A stopped process had its line aside when all were sent away: a later lease went to its waiter, for nobody."""
    port, holder = registry().store("default").port(THREADS), unrelated(KEY)
    claim = claim_in(registry())
    busy = drive(port.acquire(claim, LONG))
    assert isinstance(busy, Busy)
    line = f"{{{NAME}}}:queue:{claim.token[:16]}"
    kept: Any = redis_client.zrange(line, 0, -1, withscores=True)
    assert drive(port.release(scope_of(holder).holds[0].claim, LONG, "{}")) is None
    redis_client.zadd(line, dict(kept))
    answer = drive(port.wait(claim, busy, SOON))
    assert isinstance(answer, Busy)
    assert answer.record == "{}"
    assert redis_client.exists(line) == 0
