"""``lease.lost``: a look at it is as good as asking."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import redis

from distlock_web import Lease, LeaseLost, NotHeld, current_lease, distributed_lockable, lock
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


@pytest.mark.timing
def test_it_says_of_which_lock_it_is_and_whether_that_is_lost(memory_store: None) -> None:
    with lock(["order", "stock"], expire=0.5, on_lost="warn") as lease:
        assert repr(lease.lost) == "<Lost 'disLock:order', 'disLock:stock': unset>"
        assert lease.lost.wait(5)
        assert repr(lease.lost) == "<Lost 'disLock:order', 'disLock:stock': set>"


@pytest.mark.timing
def test_a_lost_lease_that_is_entered_again_says_what_to_do(memory_store: None) -> None:
    """The message was the one of a block, and the second block had never begun."""
    late = lock("order", expire=0.5).acquire()
    assert late.lost.wait(5)
    with (
        pytest.raises(LeaseLost, match=r"earlier lease, which was lost and never released.*call its release\(\)"),
        lock("order"),
    ):
        pytest.fail("inside of a lost lease")
    with pytest.raises(LeaseLost) as released:
        late.release()
    assert "never released" not in str(released.value)
    lock("order", wait=5).acquire().release()  # the store waits a little longer than the holder


def test_a_call_that_was_let_through_can_lose_nothing(injector: FaultInjector) -> None:
    @distributed_lockable(key="order", on_backend_error="open")
    def call() -> Lease:
        lease = current_lease()
        assert lease is not None
        lease.raise_if_lost()
        lease.extend(60)
        assert (lease.acquired, lease.state, lease.remaining, lease.reason) == (False, "held", 0.0, None)
        assert not lease.lost
        with pytest.raises(NotHeld, match="without one"):
            lease.detach()
        return lease

    injector.cut()
    lease = call()
    assert lease.state == "released"
    with pytest.raises(NotHeld, match="is over") as caught:
        lease.extend()
    assert caught.value.name == "disLock:order"


@pytest.mark.parametrize("taken", [False, True])
def test_a_flush_is_not_called_the_end_of_a_lease(
    redis_store: str, redis_client: redis.Redis, elsewhere: Callable[..., Lease], taken: bool
) -> None:
    """It did not "end before the block did"."""
    with pytest.raises(LeaseLost) as caught, lock("a", expire=60):
        redis_client.flushall()
        if taken:
            elsewhere("a")
    text = str(caught.value)
    assert caught.value.reason == ("taken" if taken else "expired")
    assert re.search(r"though its lease had 5\d\.\d s left \(released by force, flushed, evicted or deleted\)", text)
    assert ("and somebody else has it now" in text) is taken


def test_the_end_of_a_lease_is_called_so(memory_store: None) -> None:
    with pytest.raises(LeaseLost, match="ended before the block did"), lock("a", expire=0.05):
        time.sleep(0.1)
