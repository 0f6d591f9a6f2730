"""Servers that allow too little, hold too little, or are one of many: refused by name, or working; never strange."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, attach, configure, lock, once
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, now
from distlock_web.ops.held_locks import held_locks
from distlock_web.testing.harness import Harness
from distlock_web.testing.servers import RedisServer
from tests.support.callers import Beside, unrelated
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, NAME, documented_rules, held, left_behind, queued, the_lock
from tests.support.waiting import LONG, SOON

MakeRedis = Callable[..., RedisServer]

RULES = [
    "on",
    ">pw",
    "resetkeys",
    "resetchannels",
    "-@all",
    "~disLock:*",
    "~{disLock:*",
    "&distlock:*",
    "+@scripting",
    "+@string",
    "+@sortedset",
    "+@keyspace",
    "+@connection",
    "+@pubsub",
    "+time",
]


@pytest.mark.parametrize("missing", ["-publish", "-subscribe", "-pubsub", "resetchannels"])
@in_both_modes
async def test_a_right_that_waking_needs_is_missed_before_anybody_queues(
    harness: Harness, make_redis: MakeRedis, missing: str
) -> None:
    """Without PUBLISH each hand-over silently cost the whole lease of the holder before."""
    server = make_redis()
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.execute_command("ACL", "SETUSER", "shop", *RULES, missing)
        url = f"redis://shop:pw@127.0.0.1:{server.port}"
        harness.store = configure({"default": {"LOCATION": url}}).store("default")
        holder = await harness.acquire(the_lock(wait=LONG))  # a free lock needs nobody to listen
        begun = now()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="does not allow this user") as refused:
                await harness.unrelated(lambda: harness.acquire(the_lock(wait=LONG))).result()
            assert "&distlock:wake:*" in str(refused.value)
            assert "+@pubsub" in str(refused.value)
        assert now() - begun < SOON
        await harness.release(holder)
        assert left_behind(client) == {}


def test_the_rights_that_are_missing_are_for_this_stores_prefix(make_redis: Callable[..., RedisServer]) -> None:
    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~disLock:*", "&*", "+@all")
    configure({"default": {"LOCATION": f"redis://shop:secret@127.0.0.1:{server.port}", "PREFIX": "shop:lock:"}})
    with pytest.raises(ConfigurationError) as caught, lock("a"):
        pass
    assert " ~shop:lock:* ~{shop:lock:* " in str(caught.value)
    rules = " ".join(documented_rules()).replace("disLock:", "shop:lock:")
    assert rules in str(caught.value), "what the page says, which is tried there"


@pytest.fixture
def small(make_redis: MakeRedis) -> Iterator[redis.Redis]:
    """A server with little memory, which refuses to take more than it can; the default store."""
    server = make_redis("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    configure({"default": {"LOCATION": server.url}})
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def fill(client: redis.Redis) -> None:
    """Whatever is given back, it stays full: a server that is filled to the brim has room again when a buffer goes."""
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("fill", "x")


def test_a_full_server_hands_over(small: redis.Redis, beside: Beside) -> None:
    """What was taken before it was full goes on: to the next, and to the one after it."""
    holder = unrelated(KEY)
    waiting = [beside(lock(KEY, expire=LONG, wait=LONG).acquire)]
    queued(small, KEY)
    waiting.append(beside(lock(KEY, expire=LONG, wait=LONG).acquire))
    queued(small, KEY, 2)
    fill(small)
    for nearer in waiting:
        holder.release()
        holder = nearer.result(SOON)
    holder.release()
    assert left_behind(small) == {}


def test_a_full_server_gives_back_and_cools_down(small: redis.Redis) -> None:
    plain, cooling = unrelated("plain"), unrelated("cooling", hold_at_least=30)
    fill(small)
    plain.release()
    cooling.release()
    assert small.get("disLock:plain") is None
    state = held(small, "disLock:cooling")
    assert state is not None
    assert state["state"] == "cooldown"
    assert 0 < small.pttl("disLock:cooling") <= 30_000, "no longer than it was meant to be"


def test_a_full_server_keeps_and_passes_on_what_several_hold(small: redis.Redis, beside: Beside) -> None:
    first, second = (unrelated(KEY, limit=3) for _ in range(2))
    cooling = unrelated(KEY, limit=3, hold_at_least=30)
    reader = beside(lock(KEY, limit=3, expire=LONG, wait=LONG).acquire)
    queued(small, KEY)
    writer = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
    queued(small, KEY, 2)
    fill(small)
    second.extend(2 * LONG)
    first.release()
    third = reader.result(SOON)
    cooling.release()
    assert sorted(row.lock.state for row in held_locks()) == ["cooldown", "held", "held"]
    third.release()
    second.release()
    (kept,) = held_locks()
    port = registry().store("default").port(THREADS)
    assert drive(port.revoke(NAME, kept.lock.fence or 0))
    writer.result(SOON).release()
    assert left_behind(small) == {}


def test_a_full_server_passes_on_by_ticket(small: redis.Redis) -> None:
    lease, other = unrelated(KEY), unrelated("other")
    ticket = other.detach(LONG)
    fill(small)
    assert attach(lease.detach(LONG)).fence == lease.fence
    taken_on = attach(ticket)
    assert taken_on.fence == other.fence
    taken_on.extend(2 * LONG)
    taken_on.release()
    assert small.get("disLock:other") is None


def test_a_full_server_says_what_is_done(small: redis.Redis) -> None:
    """Every repeated click got a 503, and with `on_backend_error="open"` the order was made again."""
    report = once(key="report", keep=LONG, result=True)(lambda: 7)
    assert report() == 7
    fill(small)
    assert report() == 7
    with pytest.raises(BackendUnavailable, match=r"is full \(maxmemory\)"):
        once(key="another", keep=LONG)(lambda: None)()


def test_a_full_server_refuses_what_is_new_and_keeps_nothing_of_it(small: redis.Redis, beside: Beside) -> None:
    holder = unrelated(KEY)
    fill(small)
    for options in ({"key": "new"}, {"key": "new", "wait": 1.0}, {"key": KEY, "wait": 1.0}):
        with pytest.raises(BackendUnavailable, match=r"is full \(maxmemory\)"):
            unrelated(**options)
    assert small.get("disLock:new") is None
    assert left_behind(small, "disLock:new") == {}
    assert left_behind(small) == {NAME: 1}
    holder.release()
    assert left_behind(small) == {}
