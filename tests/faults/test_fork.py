"""Fork after use: the child starts afresh, the parent goes on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import redis

from distlock_web import Lease, LeaseLost, attach, current_lease, lock
from distlock_web.core import registry
from distlock_web.core.runtime import THREADS
from distlock_web.locks.lease import scope_of
from tests.support.callers import unrelated
from tests.support.forking import (
    Fork,
    begin_child,
    beside_threads,
    both_forks,
    end_of,
    in_child,
    told_by_child,
)
from tests.support.redis_lock import KEY, NAME, contend, fence_of, left_behind, waiters
from tests.support.renewals import renewed_now
from tests.support.waiting import LONG, eventually

pytestmark = beside_threads


def use_everything() -> None:
    """A connection in the pool, a listener that listens, a watchdog that renews."""
    contend()
    lease = unrelated(KEY, prefix="other:", renew=True)
    renewed_now(lease)
    lease.release()


@both_forks
def test_a_child_uses_the_lock_as_if_it_were_the_first(redis_store: str, fork: Fork, redis_client: redis.Redis) -> None:
    if fork is os.fork:  # else there must be no threads: see there
        use_everything()
    lease = unrelated(KEY, prefix="parent:", expire=LONG)
    in_child(use_everything, fork)
    use_everything()
    lease.extend()
    lease.release()
    assert left_behind(redis_client) == {}


@both_forks
def test_parent_and_children_exclude_each_other(redis_store: str, fork: Fork, redis_client: redis.Redis) -> None:
    unrelated(KEY).release()
    redis_client.set("counter", 0)

    def count() -> None:
        with redis.Redis.from_url(redis_store) as own:
            for _ in range(20):
                with lock(KEY, expire=10, wait=60):
                    seen = int(own.get("counter") or 0)
                    own.set("counter", seen + 1)

    children = [begin_child(count, fork) for _ in range(3)]
    count()
    assert [end_of(child) for child in children] == [0, 0, 0]
    assert redis_client.get("counter") == "80"
    assert left_behind(redis_client) == {}


def test_a_child_forked_inside_a_block_holds_nothing_and_its_end_releases_nothing(
    redis_store: str, redis_client: redis.Redis
) -> None:
    with lock(KEY, expire=LONG, renew=True) as lease:

        def child() -> None:
            assert lease.state == "lost"
            assert lease.reason == "forked"
            with pytest.raises(LeaseLost, match="forked"):
                lease.raise_if_lost()
            assert lock(KEY, expire=5).try_acquire() is None, "the child re-entered its parent's lock"
            lease.__exit__(None, None, None)

        in_child(child)
        assert fence_of(redis_client) == str(lease.fence)
        renewed_now(lease)  # the parent goes on
    assert left_behind(redis_client) == {}


@both_forks
def test_a_child_that_only_looks_has_a_connection_of_its_own(redis_store: str, fork: Fork) -> None:
    """It asked on its parent's, who read the answer."""
    unrelated(KEY).release()
    store = registry.registry().store("default")
    parents = store.port(THREADS)

    def child() -> None:
        assert store.port(THREADS) is not parents

    in_child(child, fork)
    assert store.port(THREADS) is parents


@both_forks
def test_a_child_does_not_enter_its_parents_lease(redis_store: str, fork: Fork, redis_client: redis.Redis) -> None:
    """It ran the block, without the lock that its parent held."""
    lease = unrelated(KEY)

    def child() -> None:
        for use in (lease.__enter__, lease.extend, lease.detach):
            with pytest.raises(LeaseLost, match="forked"):
                use()

    in_child(child, fork)
    with lease:
        assert fence_of(redis_client) == str(lease.fence)
    assert left_behind(redis_client) == {}


@pytest.mark.timing
def test_a_child_does_not_renew_its_parents_leases(redis_store: str, redis_client: redis.Redis) -> None:
    lease = unrelated(KEY, expire=0.6, renew=True)
    stop_reading, stop_writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(stop_writing)
        os.read(stop_reading, 1)  # idle, until the parent ends it
        os._exit(0)
    try:
        scope_of(lease).let_go()  # as if the parent had died: nobody may go on
        eventually(lambda: not redis_client.exists(NAME), "the lease ends although the child lives", patience=10)
    finally:
        os.close(stop_writing)
        os.close(stop_reading)
        os.waitpid(pid, 0)


@both_forks
@pytest.mark.parametrize(
    "is_lost",
    [
        lambda lease: lease.state == "lost",
        lambda lease: lease.reason == "forked",
        lambda lease: lease.remaining == 0,
        lambda lease: lease.lost.is_set(),
        lambda lease: current_lease() is None,
        lambda lease: lock(KEY).try_acquire() is None,
    ],
    ids=["state", "reason", "remaining", "lost", "current_lease", "lock"],
)
def test_whatever_a_child_asks_first_it_is_told_that_the_lease_is_its_parents(
    redis_store: str, fork: Fork, is_lost: Callable[[Lease], bool]
) -> None:
    with lock(KEY, expire=LONG) as lease:
        lost = lease.lost

        def child() -> None:
            assert is_lost(lease)
            assert lost

        in_child(child, fork)
        lease.raise_if_lost()


@both_forks
def test_a_lock_is_passed_on_to_a_child(redis_store: str, fork: Fork, redis_client: redis.Redis) -> None:
    lease = unrelated(KEY)
    fence, ticket = lease.fence, lease.detach()

    def child() -> None:
        with attach(ticket) as mine:
            assert mine.fence == fence

    in_child(child, fork)
    assert left_behind(redis_client) == {}


@both_forks
def test_a_fork_while_another_thread_is_inside_our_own_locks(
    redis_store: str, fork: Fork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those locks stay locked in the child: nobody is there to release them."""
    monkeypatch.setattr(registry, "MAX_FORK_DELAY", 0.05)
    lease = unrelated(KEY, expire=30)
    inside, over = threading.Event(), threading.Event()

    def busy() -> None:
        with scope_of(lease).holds[0]._lock, registry._first_use:
            inside.set()
            over.wait()

    thread = threading.Thread(target=busy)
    thread.start()
    inside.wait()

    def child() -> None:
        assert lease.state == "lost"
        unrelated(KEY, prefix="child:").release()

    try:
        in_child(child, fork)
    finally:
        over.set()
        thread.join()
    lease.release()


@both_forks
def test_no_two_processes_make_one_token(redis_store: str, fork: Fork) -> None:
    """In the same context, after a first lock: both were inside, each with the token of the other."""

    def used() -> str:
        with lock(KEY, expire=LONG, wait=LONG) as lease:
            return scope_of(lease).holds[0].claim.token

    tokens = [used(), *[told_by_child(used, fork) for _ in range(2)], used()]
    assert len({token[-12:] for token in tokens}) == 4
    assert len({token[:16] for token in tokens}) == 3, "each process listens in a name of its own"


@both_forks
def test_waiters_that_are_killed_do_not_live_on_in_a_sibling(
    redis_store: str, redis_client: redis.Redis, fork: Fork
) -> None:
    """They had one name in the queue: while one of them listened each of the dead seemed to, and cost a lease."""
    lease, pids = unrelated(KEY), []
    for number in range(1, 4):
        pids.append(begin_child(lambda: unrelated(KEY, wait=2 * LONG).release(), fork))
        eventually(lambda: waiters(redis_client) == number, "it waits")  # noqa: B023
    for pid in pids[:2]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    lease.release()
    assert end_of(pids[2]) == 0, "it has been handed the lock"
