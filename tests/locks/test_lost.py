"""``lease.lost``: a look at it is as good as asking."""

from __future__ import annotations

from distlock_web import current_lease, distributed_lockable, lock
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.revoking import revoke_the_lock


def test_it_is_true_when_the_lock_is_lost_and_not_before(memory_store: None) -> None:
    """``if lease.lost:`` was always true."""
    with lock("order", on_lost="warn") as lease:
        assert not lease.lost
        revoke_the_lock()
        assert not lease.lost  # nobody can know yet
        lease.lost.wait(0.01)
        assert bool(lease.lost) is lease.lost.is_set() is False
    assert lease.lost


def test_an_expired_lease_is_lost(memory_store: None) -> None:
    with lock("order", expire=0.05, on_lost="warn") as lease:
        assert not lease.lost
        assert lease.lost.wait(5)
        assert lease.lost


def test_a_lease_that_was_given_back_is_not_lost(memory_store: None) -> None:
    with lock("order") as lease:
        pass
    assert not lease.lost


def test_a_call_that_was_let_through_can_lose_nothing(injector: FaultInjector) -> None:
    @distributed_lockable(key="order", on_backend_error="open")
    def call() -> bool:
        lease = current_lease()
        assert lease is not None
        return bool(lease.lost)

    injector.cut()
    assert call() is False
