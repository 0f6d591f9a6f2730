"""A master fails, and Sentinel names another: locks go on there; with ``min_replicas`` never two believe at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, Lease, LockBusy, configure
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from distlock_web.testing.harness import AsyncHarness, Harness
from distlock_web.testing.servers import RedisServer
from tests.support.callers import unrelated
from tests.support.lab import Lab
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, held, the_lock, until_queued
from tests.support.requirements import require_redis
from tests.support.stores.sentinel import SERVICE, FakeSentinel, SentinelSetup
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.slow

#: Long enough for a replica that a busy machine keeps waiting.
OPTIONS = {"min_replicas": 1, "replica_timeout": 1.0, "socket_timeout": 2.0}


@pytest.fixture
def pair() -> Iterator[SentinelSetup]:
    """A master with one replica: ``min_replicas=1`` asks for all that may be promoted."""
    require_redis()
    with SentinelSetup(1) as setup:
        yield setup


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Lab]]:
    with ExitStack() as labs:

        def make(store: dict[str, Any]) -> Lab:
            made = Lab(store, tmp_path)
            labs.callback(made.close)
            return made

        yield make


def test_with_it_what_a_promoted_replica_would_not_know_was_never_a_lock(
    pair: SentinelSetup, make_lab: Callable[[dict[str, Any]], Lab]
) -> None:
    lab = make_lab({"LOCATION": pair.url(), "OPTIONS": OPTIONS})
    early, other = lab.ready({"wait": 0, "think": 0.2, "actor": "early"}, {"wait": 0, "think": 0.2})
    pair.cut_off(1)
    early.go()
    early.saw("gave_up")
    pair.fail_over()
    pair.rejoin()
    other.go()
    assert [early.join(), other.join()] == [0, 0]
    assert lab.history.violations(counter=lab.counter) == []
    assert lab.counter == 2


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["its master is killed", "an operator asks for it"])
def test_with_it_no_two_believe_through_a_failover_among_many(
    pair: SentinelSetup, make_lab: Callable[[dict[str, Any]], Lab], how: str
) -> None:
    """Asked for, it is worse: for seconds the master before it takes writes, and all connections to it are open."""
    lab = make_lab({"LOCATION": pair.url(), "OPTIONS": OPTIONS})
    options = {"rounds": 30, "section": 0.01, "think": 0.05, "expire": 2.0, "renew": True}
    crowd = lab.ready(*({**options, "mode": mode} for mode in ("threads", "asyncio") * 2))
    for worker in crowd:
        worker.go()
    crowd[0].saw("wrote", 3)
    if how == "its master is killed":
        pair.fail_over()
        pair.rejoin()
    else:
        pair.switch_over()
    assert [worker.join() for worker in crowd] == [0] * len(crowd)
    assert lab.history.violations(counter=lab.counter) == []
    assert lab.counter >= len(crowd) * options["rounds"]


@in_both_modes
async def test_a_holder_is_unsure_and_then_holds_on_at_the_new_master(harness: Harness, pair: SentinelSetup) -> None:
    configure({"default": {"LOCATION": pair.url(), "OPTIONS": OPTIONS}})
    harness.store = registry().store("default")
    async with harness.inside(the_lock(expire=LONG)) as lease:
        pair.fail_over()
        with pytest.raises(BackendUnavailable):
            await harness.extend(lease)  # the new master has no replica yet
        assert lease.state != "lost"
        pair.rejoin()
        await _eventually(harness, lambda: harness.extend(lease))
        with pytest.raises(LockBusy):
            await harness.unrelated(lambda: harness.acquire(the_lock())).result()
    assert held(pair.clients[1]) is None


async def _eventually(harness: Harness, ask: Callable[[], Coroutine[Any, Any, Lease | None]]) -> Lease | None:
    for _ in range(200):
        try:
            return await ask()
        except (BackendUnavailable, LockBusy):  # busy: by a try whose answer was lost, until it is undone
            await harness.sleep(0.05)
    raise AssertionError("the new master was not found")


async def _eventually_acquired(harness: Harness) -> Lease:
    lease = await _eventually(harness, lambda: harness.acquire(the_lock(expire=LONG)))
    assert lease is not None
    return lease


@in_both_modes
async def test_a_waiter_asleep_is_woken_by_the_new_master(harness: Harness, pair: SentinelSetup) -> None:
    """It was asleep for a minute, on a connection to a machine that is gone."""
    configure({"default": {"LOCATION": pair.url()}})
    harness.store = registry().store("default")
    holder = await harness.acquire(the_lock(expire=LONG))
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(expire=LONG, wait=LONG)))
    await until_queued(harness, pair.clients[0])
    pair.fail_over()
    await _eventually(harness, lambda: harness.extend(holder))
    await until_queued(harness, pair.clients[1])
    begun = now()
    await harness.release(holder)
    await harness.release(await waiting.result())
    assert now() - begun < SOON, "nobody told it, and it slept until its lease would have ended"


def test_who_finds_the_new_master_tells_every_connection_of_the_process(pair: SentinelSetup) -> None:
    """Those that are idle do not notice: the threads' would have asked a master that was left long ago."""
    configure({"default": {"LOCATION": pair.url(), "OPTIONS": {"socket_timeout": 1.0}}})
    store = registry().store("default")
    tasks = AsyncHarness(store)

    async def main() -> None:
        await asyncio.to_thread(lambda: unrelated(KEY).release())
        pair.settled(1)
        pair.servers[0].pause()
        pair.until_failed_over()
        holder = await _eventually_acquired(tasks)
        pair.servers[0].resume()
        with pytest.raises(LockBusy):
            await asyncio.to_thread(unrelated, KEY)
        await tasks.release(holder)

    asyncio.run(main())


@in_both_modes
async def test_a_master_that_lost_its_replicas_is_doubted(
    harness: Harness, make_redis: Callable[..., RedisServer]
) -> None:
    """An operator's failover leaves it a master that takes writes, with every connection to it."""
    before, after, replica = (make_redis("--repl-diskless-sync-delay", "0") for _ in range(3))
    with FakeSentinel(before.port) as sentinel, ExitStack() as clients:
        old, new, third = (
            clients.enter_context(redis.Redis.from_url(each.url, decode_responses=True))
            for each in (before, after, replica)
        )
        _follow(third, old, before.port)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"
        harness.store = configure({"default": {"LOCATION": url, "OPTIONS": OPTIONS}}).store("default")
        await harness.release(await harness.acquire(the_lock()))
        sentinel.names = after.port
        _follow(third, new, after.port)
        holder = await _eventually_acquired(harness)
        assert held(new) is not None
        await harness.release(holder)
        assert old.role()[0] == "master"


def _follow(replica: redis.Redis, master: redis.Redis, port: int) -> None:
    replica.replicaof("127.0.0.1", str(port))
    eventually(lambda: master.set("followed", 1) and master.wait(1, 50) == 1, "the replica follows")
