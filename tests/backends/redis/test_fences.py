"""A fence never falls, not after a clock that was ahead nor after lost data; and no clock makes a lease longer."""

from __future__ import annotations

import threading
from typing import Any

import hiredis
import pytest
import redis

from distlock_web import configure, lock
from distlock_web.backends.redis.scripts import ACQUIRE, RELEASE
from distlock_web.backends.redis.scripts.calls import Script, command, lock_keys
from distlock_web.backends.redis.transport.listener import Listener
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now
from tests.support.callers import Beside, unrelated
from tests.support.clock_shift import ShiftedRedis
from tests.support.redis_lock import KEY, NAME, held, queued
from tests.support.simulation.redis_server import RedisServer as SimulatedRedis
from tests.support.waiting import LONG, SOON, eventually

INDEX, FENCES = "disLock:~held", "{fences}"
DAY = 86_400


def next_fence(key: str = KEY) -> int:
    lease = unrelated(key)
    assert lease.fence is not None
    lease.release()
    return lease.fence


@pytest.mark.slow
def test_a_server_whose_clock_was_ahead_for_a_while(shifted_redis: ShiftedRedis) -> None:
    """A virtual machine was restored: its clock was ten days ahead, until it was put right."""
    server = shifted_redis
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        configure({"default": {"LOCATION": server.url}})
        fences = [next_fence()]
        for seconds in (10 * DAY, 0, 3600, -3600, 20 * DAY, DAY):
            server.shift(seconds)
            fences += [next_fence(), next_fence("another"), handed_over(client)]
        assert fences == sorted(set(fences))
        # The floor is known until the clock has come there again: 19 days.
        assert client.pttl(INDEX) > 19 * DAY * 1000


def handed_over(client: redis.Redis) -> int:
    """The fence of one who was handed the lock."""
    holder = unrelated("passed on")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(unrelated("passed on", wait=LONG)))
    waiting.start()
    queued(client, "passed on")
    holder.release()
    waiting.join(SOON)
    (lease,) = found
    assert lease.fence > holder.fence
    lease.release()
    return int(lease.fence)


@pytest.mark.usefixtures("redis_store")
def test_the_floor_that_a_clock_ahead_has_left_holds_for_every_name(redis_client: redis.Redis) -> None:
    ahead = int(redis_client.time()[0] + 10 * DAY) * 1_000_000
    next_fence()
    redis_client.zadd(INDEX, {FENCES: -ahead})
    fences = [next_fence(name) for name in ("a", "b", "a", "c")]
    assert fences == [ahead + 1, ahead + 2, ahead + 3, ahead + 4]
    assert redis_client.pttl(INDEX) > 10 * DAY * 1000
    assert redis_client.zscore(INDEX, FENCES) == -fences[-1], "exact, as every whole number below 2^53"


@pytest.mark.usefixtures("redis_store")
def test_a_fence_after_the_data_were_lost_is_higher(redis_client: redis.Redis) -> None:
    """FLUSHALL, or a restart without a disk, within the same second."""
    fences = []
    for number in range(200):
        fences.append(next_fence() if number % 2 else unrelated(KEY).fence or 0)
        redis_client.flushall()
    assert fences == sorted(set(fences))


@pytest.mark.usefixtures("redis_store")
def test_fences_grow_also_where_the_index_was_lost(redis_client: redis.Redis) -> None:
    """A full server evicts it while the lock is held: a hand-over makes it anew, without its mark."""
    holder = unrelated(KEY)
    waiting = threading.Thread(target=lambda: unrelated(KEY, wait=LONG))
    waiting.start()
    queued(redis_client, KEY)
    redis_client.delete(INDEX)
    holder.release()
    waiting.join(SOON)
    assert next_fence("b") > int((held(redis_client) or {})["fence"])


@pytest.mark.usefixtures("redis_store")
def test_a_step_of_the_clock_and_a_pause_between_two_polls(
    redis_client: redis.Redis, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader had not looked for, it cannot date: the message came during the pause, not after it."""
    expire, pause, step = 10.0, 0.7, 2.0
    holder = unrelated(KEY)
    waiting = beside(lock(KEY, expire=expire, wait=LONG).acquire)
    queued(redis_client, KEY)
    backend: Any = registry().store("default").backend
    (waiter,) = backend.server.listener.waiters.values()
    eventually(lambda: waiter.sent_at is not None, "it sleeps")
    waiter.server_time_us -= int(step * 1_000_000)  # as if the server's clock had been set since
    deliver = Listener._deliver

    def after_a_pause(self: Listener, *args: Any) -> None:
        monkeypatch.setattr(Listener, "_deliver", deliver)
        holder.release()
        threading.Event().wait(pause)
        deliver(self, *args)

    monkeypatch.setattr(Listener, "_deliver", after_a_pause)
    lease = waiting.result(SOON)
    believed = now() + lease.remaining
    left = redis_client.pttl(NAME)
    assert believed <= now() + (left + 1) / 1000
    lease.release()


class Quarters:
    """A simulated server whose clock stands where the test puts it: in seconds around 12:00 UTC, where a mark ends."""

    NOON = 1_800_014_400.0

    def __init__(self) -> None:
        self.seconds = 0.0
        self._server = SimulatedRedis(lambda: self.NOON + self.seconds)
        self._connection = self._server.connect()

    def run(self, script: Script, name: str, *args: str | int) -> Any:
        reader = hiredis.Reader()
        reader.feed(self._connection.feed(script.call(lock_keys(name, INDEX), args, by_source=True)))
        return reader.gets()

    def ask(self, name: str, who: str = "a", expire: int = 1000, join: int = 0, place: str = "") -> Any:
        return self.run(ACQUIRE, name, who * 40, expire, join, "x", int(bool(place)), place)

    def fence(self, name: str) -> int:
        """Of one who takes the lock, and gives it back."""
        answer = self.ask(name)
        assert self.run(RELEASE, name, "a" * 40, 0, 0) == 0
        return answer if isinstance(answer, int) else int(answer[0])

    def index_lives(self) -> float:
        reader = hiredis.Reader()
        reader.feed(self._connection.feed(command("PTTL", INDEX)))
        return float(reader.gets()) / 1000


def test_a_clock_that_steps_back_over_the_end_of_a_quarter() -> None:
    """The mark went back alone; then it moved again without the floor, and the time was given as the fence."""
    server = Quarters()
    fences = []
    for server.seconds in (-60, 5, -4, 1, 2, 6, 7):
        fences += [server.fence("a"), server.fence("b")]
        assert server.index_lives() > 12 * 3600
    assert fences == sorted(set(fences))


def test_the_first_of_a_quarter_does_not_pass_those_who_wait() -> None:
    """The mark was taken for the name: a lock whose holder had died looked as if nobody waited for it."""
    server = Quarters()
    server.seconds = -2
    assert type(server.ask("a", "a")) is int
    assert server.ask("a", "b", join=1)[0] == 0
    server.seconds = 1  # its lease has ended, and a quarter begun
    assert type(server.ask("a", "c")) is list, "looked for those who wait, and found that none of them listens"
