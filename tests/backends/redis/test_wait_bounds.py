"""Every wait ends within one lease of its cause: whoever dies, and however long the lease was that came before."""

from __future__ import annotations

import pytest
import redis

from distlock_web import lock
from distlock_web.core.runtime import now
from distlock_web.testing.harness import Harness
from tests.support.callers import Beside, unrelated
from tests.support.crowd import StartCrowd
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, NAME, hold_for_another, queued, the_lock, until_queued
from tests.support.waiting import LONG, SOON, eventually, fastest

pytestmark = pytest.mark.slow

SHORT = 1.0
#: What a recovery may take beyond the lease. The fastest of a few tries counts.
MARGIN = 0.2


def deaf(client: redis.Redis) -> bool:
    """Whether the server has seen the end of a killed process: this one listens alone."""
    return len(client.pubsub_channels("distlock:wake:*")) == 1


@pytest.mark.alone
@pytest.mark.timing
@pytest.mark.parametrize("how", ["detach", "cooldown"])
def test_a_lease_that_is_shortened_is_told_to_one_who_lives(
    crowd: StartCrowd, redis_client: redis.Redis, beside: Beside, how: str
) -> None:
    """The head alone was told, and had been killed."""

    def measure() -> float:
        holder = unrelated(KEY, **({"hold_at_least": 2 * SHORT} if how == "cooldown" else {}))
        cooled_down = now() + 2 * SHORT
        head = crowd()
        queued(redis_client, KEY)
        waiting = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
        queued(redis_client, KEY, 2)
        head.kill()
        eventually(lambda: deaf(redis_client), "Redis sees that the head has gone")
        ends = now() + SHORT
        if how == "detach":
            holder.detach(transit=SHORT)
        else:
            ends = max(now(), cooled_down)
            holder.release()
        lease = waiting.result(SOON)
        late = now() - ends
        lease.release()
        return late

    assert fastest(measure, MARGIN) <= MARGIN


def test_killed_waiters_are_known_to_be_dead_while_somebody_watches_all_channels(
    crowd: StartCrowd, redis_client: redis.Redis, beside: Beside
) -> None:
    """PSUBSCRIBE * made each of them look alive, and it was given a whole lease."""
    with redis_client.pubsub() as watching:  # type: ignore[no-untyped-call]
        watching.psubscribe("*")
        assert watching.get_message(timeout=SOON)
        holder = unrelated(KEY)
        dead = crowd(count=5)
        queued(redis_client, KEY, 5)
        waiting = beside(lock(KEY, expire=LONG, wait=LONG).acquire)
        queued(redis_client, KEY, 6)
        dead.kill()
        eventually(lambda: deaf(redis_client), "Redis sees that they have gone")
        holder.release()
        waiting.result(SOON).release()


@pytest.mark.timing
@in_both_modes
async def test_who_gives_up_has_looked_a_last_time(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    """Nobody was told that it is free: the key went away by itself."""
    hold_for_another(redis_client, 60_000)
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=1.0)))
    await until_queued(harness, redis_client)
    redis_client.delete(NAME)
    lease = await waiting.result()
    lease.raise_if_lost()
    await harness.release(lease)


@in_both_modes
async def test_nobody_sleeps_longer_than_a_lease_of_its_own(
    harness: Harness, redis_store: str, redis_client: redis.Redis
) -> None:
    """Whatever is lost, of the holder's lease or of what was said: nothing of a long lease is waited for."""
    hold_for_another(redis_client, 60_000)
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(expire=SHORT, wait=LONG)))
    await until_queued(harness, redis_client)
    redis_client.delete(NAME)
    deleted = now()
    await harness.release(await waiting.result())
    assert now() - deleted < SOON
