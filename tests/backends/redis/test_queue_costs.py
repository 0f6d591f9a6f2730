"""The queue costs what is alive: the server's own time, as a ratio to that of a lock without any waiters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from distlock_web import lock
from distlock_web.backends.redis.scripts import ACQUIRE
from distlock_web.backends.redis.scripts.calls import lock_keys
from distlock_web.core.backend import Claim
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token
from tests.support.callers import unrelated
from tests.support.redis_lock import KEY, NAME, held, waiters
from tests.support.waiting import LONG, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("redis_store")]

CROWD, ROUNDS = 10_000, 100


class ServerTime:
    """The µs that the server has spent in our scripts since the last look."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._spent()

    def _spent(self) -> int:
        stats = self._client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in ("eval", "evalsha"))

    def read(self) -> int:
        before, self._before = self._before, self._spent()
        return self._before - before


def lowest(measure: Callable[[], float]) -> float:
    """Of three: the server counts the time of the clock on the wall, in which a busy machine lets it stand still."""
    return min(measure() for _ in range(3))


def lock_and_unlock(client: redis.Redis, key: str = KEY) -> float:
    """The server's µs for one lock and unlock."""
    spent = ServerTime(client)
    for _ in range(ROUNDS):
        with lock(key, expire=LONG):
            pass
    return spent.read() / ROUNDS


def join(processes: list[str], count: int, expire: float = LONG) -> list[Claim]:
    """So many waiters of these processes, in turn; whether they live is not asked."""
    run = registry().store("default").backend.server.threads().run  # type: ignore[attr-defined]
    keys = lock_keys(NAME, "disLock:~held")
    claims = [Claim(NAME, new_token(processes[number % len(processes)]), expire, "x") for number in range(count)]
    for claim in claims:
        answer = drive(run(ACQUIRE, keys, (claim.token, round(expire * 1000), 1, "x", 0, "")))
        assert answer[0] == 0, "it waits"
    return claims


@pytest.mark.alone
@pytest.mark.timing
@pytest.mark.parametrize("processes", [1, CROWD])
def test_10000_dead_waiters_cost_the_server_nothing_afterwards(redis_client: redis.Redis, processes: int) -> None:
    """A lock and unlock took 46 ms of the whole server; every one of them."""
    alone = lowest(lambda: lock_and_unlock(redis_client))
    holder = unrelated(KEY)
    join([f"{number:016x}" for number in range(processes)], CROWD)
    assert waiters(redis_client) == CROWD
    spent = ServerTime(redis_client)
    holder.release()
    once = spent.read()
    assert lowest(lambda: lock_and_unlock(redis_client)) < 2 * alone
    assert once < CROWD * alone, "the release that finds them dead"
    assert redis_client.exists(f"{{{NAME}}}:queue") == 0
    assert all(redis_client.pttl(line) > 0 for line in lines_of(redis_client))


@pytest.mark.alone
@pytest.mark.timing
def test_a_queue_of_10000_living_waiters_costs_a_hand_over_what_a_short_one_does(redis_client: redis.Redis) -> None:
    """One process with many waiters, which listens."""
    ident = registry().store("default").ident

    def hand_overs(crowd: int) -> float:
        port = registry().store("default").port(THREADS)
        holder = Claim(NAME, new_token(), LONG, "x")
        drive(port.acquire(holder, 0))
        claims = [holder, *join([ident], crowd)]
        spent = ServerTime(redis_client)
        for claim in claims[:ROUNDS]:
            lock = held(redis_client)
            assert lock is not None
            assert lock["owner"] == claim.token, "in the order in which they came"
            drive(port.release(claim))
        spent_on_all = spent.read()
        redis_client.flushall()
        return spent_on_all / ROUNDS

    with redis_client.pubsub() as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(f"distlock:wake:{ident}")
        assert listening.get_message(timeout=5)
        few = lowest(lambda: hand_overs(ROUNDS))
        assert lowest(lambda: hand_overs(CROWD)) < 3 * few


QUEUE = f"{{{NAME}}}:queue"


def test_dead_waiters_stand_in_the_queue_only_until_somebody_asks(redis_client: redis.Redis) -> None:
    """Each question went through all of them, for as long as somebody had the lock. Who lives gets its place again."""
    unrelated(KEY)
    dead, questions = {f"{number:016x}": number + 1 for number in range(60)}, 200
    with redis_client.pubsub() as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(f"distlock:wake:{'a' * 16}")
        assert listening.get_message(timeout=5)
        redis_client.zadd(QUEUE, {"a" * 16: 0, **dead})
        (one,) = join(["f" * 16], 1)
        redis_client.config_resetstat()
        join(["e" * 16], questions)
        looks = redis_client.info("commandstats")["cmdstat_zrandmember"]["calls"]
        assert 3 <= looks <= questions / 2, "one in eight, at two dozen that chance names"
        assert redis_client.zrange(QUEUE, 0, -1) == ["a" * 16, "e" * 16], "who lives, and who asks"
    eventually(lambda: not redis_client.pubsub_numsub(f"distlock:wake:{'a' * 16}")[0][1], "nobody listens")
    redis_client.zadd(QUEUE, dead)
    port = registry().store("default").port(THREADS)
    drive(port.acquire(Claim(NAME, new_token(), LONG, "x", 1), 60))
    assert redis_client.zcard(QUEUE) == 1, "all of them where they are counted"
    run = registry().store("default").backend.server.threads().run  # type: ignore[attr-defined]
    answer = drive(run(ACQUIRE, lock_keys(NAME, "disLock:~held"), (one.token, round(LONG * 1000), 1, "x", 1, "")))
    assert redis_client.zrange(QUEUE, 0, -1, withscores=True)[0] == ("f" * 16, answer[4])


def test_the_keys_of_dead_waiters_go_by_themselves(redis_client: redis.Redis) -> None:
    """Their process was killed, and nobody ever uses that name again."""
    holder = unrelated(KEY, expire=2)
    join(["0" * 16, "1" * 16], 10, expire=2)
    assert len(lines_of(redis_client)) == 2
    # Some seconds longer than the next question of its waiters was due.
    assert all(0 < redis_client.pttl(line) <= 21_000 for line in lines_of(redis_client))
    assert 0 < redis_client.pttl(f"{{{NAME}}}:queue") <= 21_000
    del holder


def test_a_process_takes_part_again_for_as_long_as_each_of_its_waiters_sleeps(redis_client: redis.Redis) -> None:
    """It stood aside, and a waiter with a short lease brings it back: the queue ended before the sleep of another."""
    holder = unrelated(KEY, expire=10 * LONG)
    join(["f" * 16], 1, expire=10 * LONG)
    redis_client.delete(QUEUE)
    join(["f" * 16], 1, expire=LONG / 10)
    assert redis_client.pttl(QUEUE) >= redis_client.pttl(f"{QUEUE}:{'f' * 16}") > 9000 * LONG
    del holder


def lines_of(client: redis.Redis) -> list[str]:
    """The keys of the processes that wait."""
    return list(client.scan_iter(f"{{{NAME}}}:queue:*", count=CROWD))
