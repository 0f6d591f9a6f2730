"""``request_scope`` and locks: a job is a request of its own, and begins inside of none."""

from __future__ import annotations

import pytest

from distlock_web import LockBusy, current_lease, lock, request_scope

pytestmark = pytest.mark.usefixtures("memory_store")


def test_a_lock_around_a_job_is_not_entered_again() -> None:
    with lock("a") as outer:
        with request_scope("job"):
            assert current_lease() is None
            with pytest.raises(LockBusy):
                lock("a").acquire()
        assert current_lease() == outer
        with lock("a") as nested:
            assert nested.depth == 2


def test_what_one_job_leaves_behind_is_not_the_next_one_s() -> None:
    with request_scope("one"):
        left = lock("a").acquire()
    with request_scope("two"), pytest.raises(LockBusy):
        lock("a").acquire()
    assert current_lease() is None
    left.release()


def test_a_lock_around_a_job_may_end_inside_of_it() -> None:
    lease = lock("a").acquire()
    with request_scope("job"):
        lease.release()
        with lock("a") as own:
            assert own.depth == 1
    assert current_lease() is None
    with lock("a") as own:
        assert own.depth == 1
