"""What a lock has in Redis: every key has an end, and a name that is not used leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any

import pytest
import redis

from distlock_web import LockBusy, attach, lock
from distlock_web.core.backend import SHARED, Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import KEY, NAME, queued
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.usefixtures("redis_store")

INDEX = "disLock:~held"


def endless(client: redis.Redis) -> list[str]:
    """The keys without a TTL."""
    return [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]


def steps(client: redis.Redis, beside: Beside) -> dict[str, Callable[[], object]]:
    """A day in the life of a lock."""
    lasting: dict[str, Any] = {}

    def hand_over() -> None:
        lasting["holder"].release()
        lasting["holder"] = lasting.pop("waiting").result(SOON)

    def wait() -> None:
        lasting["waiting"] = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
        queued(client, KEY)

    def give_up() -> None:
        assert beside(lock(KEY, wait=0.05).try_acquire).result(SOON) is None

    def revoke() -> None:
        assert drive(registry().store("default").port(THREADS).revoke(NAME, lasting["holder"].fence))

    def take(**options: Any) -> Callable[[], None]:
        return lambda: lasting.update(holder=unrelated(KEY, **options))

    return {
        "taken": take(),
        "waited for": wait,
        "given up": give_up,
        "extended": lambda: lasting["holder"].extend(2 * LONG),
        "handed over": hand_over,
        "waited for again": wait,
        "detached": lambda: lasting.update(ticket=lasting["holder"].detach(LONG)),
        "attached": lambda: lasting.update(holder=attach(lasting["ticket"])),
        "handed over again": hand_over,
        "given back": lambda: lasting["holder"].release(),
        "taken for long": take(hold_at_least=LONG),
        "cooling down": lambda: lasting["holder"].release(),
        "forgotten": lambda: client.delete(NAME),
        "taken once more": take(),
        "revoked": revoke,
    }


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_every_key_has_an_end_at_all_times(redis_client: redis.Redis, beside: Beside, index: str) -> None:
    """A key that was made anew after its first one had ended stayed for ever.

    ``lost``: the index is evicted, or has ended, before each step.
    """
    found: dict[str, list[str]] = {}
    for name, step in steps(redis_client, beside).items():
        if index == "lost":
            redis_client.delete(INDEX)
        step()
        if keys := endless(redis_client):
            found[name] = keys
    assert found == {}


#: How a share may end. It cannot be detached.
ENDINGS: dict[str, Callable[[Any, Claim, int], Coroutine[Any, Any, object]]] = {
    "released": lambda port, claim, fence: port.release(claim),
    "kept for a while": lambda port, claim, fence: port.release(claim, LONG / 2),
    "undone": lambda port, claim, fence: port.cancel(claim),
    "revoked": lambda port, claim, fence: port.revoke(claim.name, fence),
}
#: Who waits for it: a process that listens, or none does, and whether the claim is for a place or for the lock alone.
HEARS, DEAF = "a" * 16, "b" * 16
WAITING = {"nobody": "", "one that died": DEAF, "one for a place": HEARS, "one for the lock alone": HEARS}


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("limit", [2, SHARED])
@pytest.mark.parametrize("waits", WAITING)
def test_every_key_has_an_end_however_shares_end(redis_client: redis.Redis, waits: str, limit: int, index: str) -> None:
    """The last share's field was removed, with its key and the TTL of that, and the tombstone made the key anew."""
    port, process = registry().store("default").port(THREADS), WAITING[waits]
    found: list[str] = []
    with redis_client.pubsub() as pubsub:  # type: ignore[no-untyped-call]
        pubsub.subscribe(f"distlock:wake:{HEARS}")
        eventually(lambda: redis_client.pubsub_numsub(f"distlock:wake:{HEARS}")[0][1], "it listens")
        for endings in [*product(ENDINGS), *product(ENDINGS, repeat=2)]:
            for leases in ((LONG, 2 * LONG), (2 * LONG, LONG)):
                name, said = f"disLock:{len(found)}", ""
                claims = [Claim(name, new_token().limited(limit), lease) for lease in leases[: len(endings)]]
                grants = [drive(port.acquire(claim, 0)) for claim in claims]
                if process:
                    entry = new_token(process).limited(limit) if waits == "one for a place" else new_token(process)
                    queue = f"{{{name}}}:queue"
                    redis_client.zadd(f"{queue}:{process}", {f"{entry} {int(LONG * 1000)} waits": 1})
                    redis_client.zadd(queue, {process: 1})
                    redis_client.pexpire(f"{queue}:{process}", int(LONG * 1000))
                    redis_client.pexpire(queue, int(LONG * 1000))
                for ending, claim, grant in zip(endings, claims, grants, strict=True):
                    if index == "lost":
                        redis_client.delete(INDEX)
                    assert isinstance(grant, Granted)
                    drive(ENDINGS[ending](port, claim, grant.fence or 0))
                    said += f" {ending}: {endless(redis_client)}"
                for row in drive(port.inspect([name])):  # who was handed it, or is kept for a while
                    drive(port.revoke(name, row.fence or 0))
                    said += f" {row.state}, revoked: {endless(redis_client)}"
                found.append(said)
                redis_client.flushdb()
    assert [said for said in found if said.count("[]") != said.count("[")] == []


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.0004])
def test_no_time_is_so_short_that_a_lock_never_ends(redis_client: redis.Redis, seconds: float) -> None:
    """Half a millisecond was rounded to none: Redis deleted the key, and it was made anew without a TTL."""
    port = registry().store("default").port(THREADS)
    verbs: dict[str, Callable[[Claim], Coroutine[Any, Any, object]]] = {
        "detach": lambda claim: port.detach(claim, "transit", seconds),
        "attach": lambda claim: port.attach(claim._replace(token=new_token(), expire=seconds), claim.token),
        "extend": lambda claim: port.extend([claim._replace(expire=seconds)]),
        "release": lambda claim: port.release(claim, seconds),
    }
    for name, verb in verbs.items():
        claim = Claim(f"disLock:{name}", new_token(), LONG)
        assert isinstance(drive(port.acquire(claim, 0)), Granted)
        if name == "attach":
            ticket = claim._replace(token=new_token())
            assert drive(port.detach(claim, ticket.token, LONG)) is None
            claim = ticket
        drive(verb(claim))
        assert endless(redis_client) == [], name
    assert redis_client.pttl("disLock:extend") > 1000, "an extension never shortens"


def test_a_name_that_was_given_back_leaves_nothing(redis_client: redis.Redis, beside: Beside) -> None:
    """217 bytes for 70 minutes: a million order ids were 217 MB."""
    for number in range(20):
        unrelated(f"order:{number}").release()
    assert list(redis_client.scan_iter(count=1000)) == [INDEX]
    assert redis_client.zcard(INDEX) == 3, "the floor of all fences, and a mark with its double"


@pytest.mark.slow
def test_a_name_that_was_waited_for_leaves_nothing_after_seconds(redis_client: redis.Redis, beside: Beside) -> None:
    """Who was handed over, revoked, given up or detached is remembered for as long as somebody may ask."""
    for name, step in steps(redis_client, beside).items():
        if name == "taken for long":
            break
        step()
    eventually(lambda: list(redis_client.scan_iter(count=1000)) == [INDEX], "nothing is left", 20)


def test_the_index_outlives_what_it_lists(redis_client: redis.Redis) -> None:
    """Made long ago for short leases; then one is taken that lasts for days."""
    unrelated("short", expire=1).release()
    redis_client.pexpire(INDEX, 60_000)  # a day has passed
    leases = [unrelated(f"long:{number}", expire=3600) for number in range(4)]
    assert redis_client.pttl(INDEX) > 3_500_000
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("busy", [False, True])
def test_the_index_outlives_its_last_use(redis_client: redis.Redis, busy: bool) -> None:
    """A day after it was made it ended, though locks were taken all the time: those were missing from the list."""
    unrelated("yesterday").release()
    if busy:
        lease = unrelated("a", expire=30)
    for mark in ("{lasts}", "{lasts too}"):  # it had its TTL some hours ago
        redis_client.zincrby(INDEX, 1, mark)
    redis_client.pexpire(INDEX, 60_000)
    if busy:
        with pytest.raises(LockBusy):
            unrelated("a", expire=30)
    else:
        lease = unrelated("a", expire=30)
    assert redis_client.pttl(INDEX) > 12 * 3_600_000
    lease.release()
    redis_client.pexpire(INDEX, 60_000)
    assert [unrelated(f"b:{number}", expire=30).release() for number in range(3)] == [None] * 3
    assert redis_client.zcard(INDEX) == 3, "one mark"


def test_a_hand_over_that_begins_a_quarter_of_a_day_gives_the_index_its_end_anew(
    redis_client: redis.Redis, beside: Beside
) -> None:
    """It moved the mark, and did not look: until the next quarter nobody did."""
    lease = unrelated(KEY, expire=30)
    waiting = beside(lock(KEY, expire=30, wait=LONG).acquire)
    queued(redis_client, KEY)
    for mark in ("{lasts}", "{lasts too}"):
        redis_client.zincrby(INDEX, 1, mark)
    redis_client.pexpire(INDEX, 60_000)
    lease.release()
    assert redis_client.pttl(INDEX) > 12 * 3_600_000
    waiting.result(SOON).release()


@pytest.mark.parametrize("limit", [1, 2, SHARED])
def test_a_late_copy_leaves_the_listing_as_it_is(redis_client: redis.Redis, limit: int) -> None:
    """The lock is kept for a while after its end; an old copy of its acquisition listed it for less."""
    port = registry().store("default").port(THREADS)
    claim = Claim(NAME, new_token(limit=limit), 5.0)
    assert isinstance(drive(port.acquire(claim, 0)), Granted)
    assert drive(port.release(claim, 2 * LONG)) is None
    listed = redis_client.zscore(INDEX, NAME)
    assert isinstance(drive(port.acquire(claim, 0)), Busy)
    now_listed = redis_client.zscore(INDEX, NAME)
    assert listed is not None
    assert now_listed is not None
    assert now_listed > listed - 1_000_000, "a TTL is rounded, and the script takes its time"


def test_a_lock_that_is_asked_for_stays_listed_to_its_end(redis_store: str, redis_client: redis.Redis) -> None:
    """Who asked for less put its end to an earlier one, and did not notice where fences are ahead of the clock."""
    redis_client.zadd("disLock:~held", {"{fences}": -(time.time() + 100) * 1_000_000})
    lease = unrelated("a", expire=300)
    redis_client.zadd("disLock:~held", {"{fences}": -(time.time() + 200) * 1_000_000})
    with pytest.raises(LockBusy):
        unrelated("a", expire=10)
    listed = redis_client.zscore("disLock:~held", "disLock:a")
    assert listed is not None
    assert listed / 1_000_000 > time.time() + 200
    lease.release()
