"""A lock that passes from hand to hand: nobody believes to have it who has not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from distlock_web import BackendUnavailable, NotHeld, attach, configure, lock
from distlock_web.backends.redis.transport.subscription import Grant
from distlock_web.backends.redis.transport.waiter import ReceivedGrant, Waiter
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Registry, registry
from distlock_web.core.runtime import THREADS, drive, new_token, now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import NAME, held, queued, waiters
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


@pytest.mark.parametrize(("connection", "passed", "granted"), [(1, 1, True), (1, -1, False), (2, 1, False)])
def test_news_that_is_older_than_the_servers_last_word_or_another_servers_grants_nothing(
    connection: int, passed: int, granted: bool
) -> None:
    """Who was stopped for longer than its lease read of it afterwards, and entered; clocks of two servers differ."""
    waiter = Waiter(Claim(NAME, new_token(), LONG), THREADS, connection=1)
    waiter.sent_at, waiter.server_time_us = now(), 1_000_000
    waiter.news = ReceivedGrant(Grant(7, waiter.server_time_us + passed), connection, now())
    assert (waiter.granted_since() is not None) is granted


def owner_of(client: redis.Redis) -> tuple[str, str]:
    lock = held(client, "disLock:a")
    assert lock is not None
    return lock["owner"], lock["fence"]


@pytest.mark.parametrize("key", ["two words", "and two more", f"1 {2**52} looks like a grant"])
def test_whoever_waits_for_a_name_with_blanks_hears_of_a_lease_that_ends_sooner(
    redis_store: str, redis_client: redis.Redis, beside: Beside, key: str
) -> None:
    """The blanks of a name were counted as fields: it was not heard, or taken for a grant that nobody had made."""
    holder = unrelated(key, prefix="")
    waiting = beside(lock(key, prefix="", expire=LONG, wait=LONG).acquire)
    eventually(lambda: waiters(redis_client, key) == 1, "it waits")
    transit = holder.detach(transit=0.5)
    lease = waiting.result(SOON)
    assert (lease.fence or 0) > (holder.fence or 0)
    with pytest.raises(NotHeld):
        attach(transit)
    lease.release()


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
