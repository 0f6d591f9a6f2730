"""fork after use, as gunicorn --preload and Celery's prefork do: the child starts afresh, the parent goes on."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable

import pytest
import redis

from distlock_web import LeaseLost, attach, lock
from distlock_web.core import registry
from distlock_web.locks.lease import scope_of
from tests.support.callers import unrelated
from tests.support.redis_lock import KEY, NAME, contend, fence_of, left_behind
from tests.support.waiting import eventually

# Python 3.12 warns of a fork beside other threads: that is what this is about.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def in_child(work: Callable[[], object]) -> None:
    """Run this in a forked child; fails if it fails there, or takes longer than a deadlock would."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's would fail the test in the child
            signal.alarm(20)  # a deadlocked child ends with a signal, and the test with it
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"


def use_everything() -> None:
    """A connection in the pool, a listener that listens, a watchdog that renews."""
    contend()
    lease = unrelated(KEY, prefix="other:", expire=1.5, renew=True)
    deadline = scope_of(lease).holds[0].deadline
    eventually(lambda: scope_of(lease).holds[0].deadline > deadline, "it is renewed")
    lease.release()


def test_a_child_uses_the_lock_as_if_it_were_the_first(redis_store: str, redis_client: redis.Redis) -> None:
    use_everything()
    lease = unrelated(KEY, prefix="parent:", expire=3.0, renew=True)
    in_child(use_everything)
    use_everything()
    lease.extend()
    lease.release()
    assert left_behind(redis_client) == {}


def test_parent_and_children_exclude_each_other(redis_store: str, redis_client: redis.Redis) -> None:
    use_everything()
    redis_client.set("counter", 0)

    def count() -> None:
        with redis.Redis.from_url(redis_store) as own:
            for _ in range(20):
                with lock(KEY, expire=10, wait=60):
                    seen = int(own.get("counter") or 0)
                    own.set("counter", seen + 1)

    children = [threading.Thread(target=in_child, args=(count,)) for _ in range(3)]
    for child in children:
        child.start()
    count()
    for child in children:
        child.join()
    assert redis_client.get("counter") == "80"
    assert left_behind(redis_client) == {}


def test_a_child_forked_inside_a_block_holds_nothing_and_its_end_releases_nothing(
    redis_store: str, redis_client: redis.Redis
) -> None:
    with lock(KEY, expire=2.0, renew=True) as lease:

        def child() -> None:
            assert lease.state == "lost"
            assert lease.reason == "forked"
            with pytest.raises(LeaseLost, match="forked"):
                lease.raise_if_lost()
            assert lock(KEY, expire=5).try_acquire() is None, "the child re-entered its parent's lock"
            lease.__exit__(None, None, None)

        in_child(child)
        assert fence_of(redis_client) == str(lease.fence)
        before = scope_of(lease).holds[0].deadline
        eventually(lambda: scope_of(lease).holds[0].deadline > before, "the parent goes on renewing")
    assert left_behind(redis_client) == {}


def test_a_child_does_not_enter_its_parents_lease(redis_store: str, redis_client: redis.Redis) -> None:
    """It ran the block, without the lock that its parent held."""
    lease = unrelated(KEY)

    def child() -> None:
        for use in (lease.__enter__, lease.extend, lease.detach):
            with pytest.raises(LeaseLost, match="forked"):
                use()

    in_child(child)
    with lease:
        assert fence_of(redis_client) == str(lease.fence)
    assert left_behind(redis_client) == {}


def test_a_child_does_not_renew_its_parents_leases(redis_store: str, redis_client: redis.Redis) -> None:
    lease = unrelated(KEY, expire=0.6, renew=True)
    stop_reading, stop_writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(stop_writing)
        os.read(stop_reading, 1)  # idle, until the parent ends it
        os._exit(0)
    try:
        scope_of(lease).stop_watching()  # as if the parent had died: nobody may go on
        eventually(lambda: not redis_client.exists(NAME), "the lease ends although the child lives", patience=10)
    finally:
        os.close(stop_writing)
        os.close(stop_reading)
        os.waitpid(pid, 0)


def test_a_lock_is_passed_on_to_a_child(redis_store: str, redis_client: redis.Redis) -> None:
    lease = unrelated(KEY)
    fence, ticket = lease.fence, lease.detach()

    def child() -> None:
        with attach(ticket) as mine:
            assert mine.fence == fence

    in_child(child)
    assert left_behind(redis_client) == {}


def test_a_fork_while_another_thread_is_inside_our_own_locks(redis_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        in_child(child)
    finally:
        over.set()
        thread.join()
    lease.release()
