"""Workers that die, or stand still, in the middle of it: the others go on within one lease, and nobody overlaps."""

from __future__ import annotations

import pytest
import redis

from tests.support.lab import Lab
from tests.support.modes import modes
from tests.support.redis_lock import fence_of, left_behind


@modes
def test_processes_take_turns_in_the_order_in_which_they_came(lab: Lab, redis_client: redis.Redis, mode: str) -> None:
    workers = lab.ready(*[{"mode": mode, "rounds": 15, "section": 0.005, "think": 0.002}] * 4)
    for worker in workers:
        worker.go()
    assert [worker.join() for worker in workers] == [0] * 4
    assert lab.history.violations(counter=lab.counter, fifo=True) == []
    assert lab.counter == 60
    assert lab.history.count("joined") > 10, "they hardly contended"
    assert left_behind(redis_client) == {}


@modes
@pytest.mark.parametrize("renew", [False, True])
def test_a_holder_that_stood_still_past_its_lease_has_lost_it(
    lab: Lab, redis_client: redis.Redis, mode: str, renew: bool
) -> None:
    holder, successor = lab.ready(
        {"mode": mode, "hold": True, "renew": renew, "expire": 1.0}, {"mode": mode, "hold": True, "expire": 30}
    )
    holder.go()
    first = holder.saw("acquired")
    holder.stop()
    successor.go()
    begun = successor.saw("acquired")
    holder.resume()
    holder.go()
    lost = holder.saw("lost")
    assert holder.join() == 0
    # Known by its own clock, and before the other could begin.
    assert lost.at < begun.at
    assert first.value is not None
    assert begun.value is not None
    assert begun.value > first.value
    # Its release has not freed the other's lock.
    assert fence_of(redis_client) == str(begun.value)
    successor.go()
    assert successor.join() == 0
    assert lab.history.violations(counter=lab.counter) == []
    assert lab.counter == 1
