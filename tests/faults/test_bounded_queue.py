"""One runs, one waits, the others are skipped: the last change is seen all the same."""

from __future__ import annotations

import redis

from tests.support.lab import Lab
from tests.support.redis_lock import waiters
from tests.support.waiting import eventually


def test_a_waiter_that_died_takes_nobodys_place(lab: Lab, redis_client: redis.Redis) -> None:
    """Whoever is skipped counts on the one that waits."""
    holder = lab.start(hold=True, expire=60)
    holder.saw("acquired")
    killed = lab.start(expire=60)
    killed.saw("joined")
    killed.kill()
    eventually(lambda: len(redis_client.pubsub_channels("distlock:wake:*")) == 0, "Redis sees that it has gone")
    waiter = lab.start(max_waiters=1)
    eventually(lambda: waiters(redis_client) == 2, "the next one has the place")
    holder.go()
    assert waiter.join() == 0
