"""A lock that is handed to a token for which nobody waits goes on at once; never one whose owner believes in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from distlock_web import LeaseLost
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import Registry, Store, registry
from distlock_web.core.runtime import THREADS, Token, drive, new_token
from distlock_web.locks.lease import scope_of
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import KEY, NAME, held, left_behind, queued
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.usefixtures("redis_store")


class Waiting:
    """A claim of the default store that waits, and what becomes of it."""

    def __init__(self, client: redis.Redis, url: str) -> None:
        self.client, self.url = client, url
        self.loop = asyncio.new_event_loop()
        self.store: Store = registry().store("default")
        self.port = self.store.port(THREADS)
        self.backend: Any = self.store.backend
        self.claim = Claim(NAME, new_token(self.store.ident), LONG, "x")
        self.holder = unrelated(KEY)
        self.answer: Granted | Busy = drive(self.port.acquire(self.claim, LONG))
        assert isinstance(self.answer, Busy)
        self.listen()

    def listen(self) -> None:
        """As if a task of an event loop waited beside it: the listener's own thread reads."""
        self.beside = self.claim._replace(token=Token(self.claim.token[:-1] + "x"))
        self.backend.server.listener.expect(self.beside, THREADS).loop = self.loop
        drive(self.backend.server.listener.listen(THREADS))

    def end(self) -> None:
        self.backend.server.listener.remove(self.beside.token)
        self.loop.close()
        drive(self.port.cancel(self.claim))

    def release(self) -> None:
        """Hand it over."""
        self.holder.release()
        assert self.owns()

    def owns(self) -> bool:
        found = held(self.client)
        return found is not None and found["owner"] == self.claim.token

    def wait(self, seconds: float | None = SOON) -> Granted | Busy:
        assert isinstance(self.answer, Busy)
        return drive(self.port.wait(self.claim, self.answer, seconds))

    def told(self) -> None:
        """Return when all is read, and done, that was published until now."""
        marker, given_up = new_token(self.store.ident), self.backend.server.listener._give_up
        seen = threading.Event()

        def note(claim: Claim, fence: int) -> None:
            given_up(claim, fence)
            if claim.token == marker:
                seen.set()

        self.backend.server.listener._give_up = note
        self.backend.server.listener.gave_up(marker)
        self.listen()
        self.client.publish(f"distlock:wake:{self.store.ident}", f"{marker} 1 1 disLock:nowhere")
        assert seen.wait(SOON)
        self.backend.server.listener._give_up = given_up
        eventually(lambda: not postponed(self.backend), "what was to be given back is")

    def stays(self) -> None:
        """Nobody gives it back, though all is read that was published."""
        self.told()
        assert self.owns()
        assert drive(self.port.extend([self.claim])) == [None]
        assert drive(self.port.release(self.claim)) is None
        assert left_behind(self.client) == {}


def postponed(backend: Any) -> Any:
    return backend.server.outage._postponed


@pytest.fixture
def waiting(redis_client: redis.Redis, redis_url: str) -> Iterator[Waiting]:
    found = Waiting(redis_client, redis_url)
    yield found
    found.end()


def test_six_of_them_cost_nothing(waiting: Waiting, beside: Beside) -> None:
    for number in range(5):
        claim = waiting.claim._replace(token=new_token(waiting.store.ident))
        assert isinstance(drive(waiting.port.acquire(claim, LONG)), Busy), number
        waiting.backend.server.listener.gave_up(claim.token)
    waiting.backend.server.listener.gave_up(waiting.claim.token)
    behind = beside(unrelated, KEY, wait=LONG)
    queued(waiting.client, KEY, 7)
    waiting.holder.release()
    behind.result(SOON).release()


def test_one_whose_answer_is_on_its_way_keeps_it(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the queue and does not know it yet; it is handed the lock, and told of that first."""
    claim = waiting.claim._replace(token=new_token(waiting.store.ident))
    drive(waiting.port.cancel(waiting.claim))
    waiting.claim, run = claim, waiting.backend.server.threads().run

    async def late(*args: Any, **options: Any) -> Any:
        answer = await run(*args, **options)
        if isinstance(answer, list) and answer[0] == 0 and not waiting.owns():
            monkeypatch.undo()
            waiting.release()
            waiting.told()
        return answer

    monkeypatch.setattr(waiting.backend.server.threads(), "run", late)
    waiting.answer = drive(waiting.port.acquire(claim, LONG))
    assert isinstance(waiting.answer, Busy)
    assert isinstance(waiting.wait(), Granted)
    waiting.stays()


def test_one_between_two_sleeps_keeps_it(waiting: Waiting) -> None:
    waiting.answer = waiting.wait(0.01)
    assert isinstance(waiting.answer, Busy)
    waiting.release()
    waiting.told()
    assert isinstance(waiting.wait(), Granted)
    waiting.stays()


def test_what_somebody_else_waits_for_who_listens_here_too_is_not_given_back(waiting: Waiting) -> None:
    """A copy of the machine, or the same node under another address: its lock went on while it believed in it."""
    waiting.port.leave(waiting.claim.token)  # type: ignore[attr-defined]
    waiting.release()
    waiting.stays()


def test_a_late_cancel_spares_another_grant_of_the_same_token(waiting: Waiting) -> None:
    """It is kept for up to an hour, and the token may have asked again, and been handed the lock again."""
    waiting.release()
    fence, port = int((held(waiting.client) or {})["fence"]), waiting.backend._sync_port
    drive(port.cancel_now(waiting.claim, fence=fence - 1))
    assert (held(waiting.client) or {})["state"] == "granted"
    drive(port.cancel_now(waiting.claim, fence=fence))
    assert (held(waiting.client) or {})["state"] == "released"


def test_a_late_cancel_spares_one_that_has_asked_since(waiting: Waiting) -> None:
    waiting.release()
    assert isinstance(drive(waiting.port.acquire(waiting.claim, 0)), Granted)
    drive(waiting.backend._sync_port.cancel_now(waiting.claim, fence=int((held(waiting.client) or {})["fence"])))
    waiting.stays()


def test_one_that_gave_up_and_waits_again_keeps_it(waiting: Waiting) -> None:
    """Its token was remembered as given up: a message of its grant that was read once more gave its lock back."""
    waiting.backend.server.listener.gave_up(waiting.claim.token)
    waiting.answer = drive(waiting.port.acquire(waiting.claim, LONG))
    waiting.release()
    granted = waiting.wait()
    assert isinstance(granted, Granted)
    waiting.client.publish(f"distlock:wake:{waiting.store.ident}", f"{waiting.claim.token} {granted.fence} 1 {NAME}")
    waiting.stays()


def test_a_release_of_what_was_revoked_lets_the_others_of_its_process_have_the_free_lock(waiting: Waiting) -> None:
    """They stood aside, for it had been handed the lock; they slept on beside a free one."""
    second = waiting.claim._replace(token=new_token(waiting.store.ident))
    assert isinstance(drive(waiting.port.acquire(second, LONG)), Busy)
    stranger = Registry({"default": {"LOCATION": waiting.url}})
    third = waiting.claim._replace(token=new_token(stranger.store("default").ident))
    elsewhere = stranger.store("default").port(THREADS)
    assert isinstance(drive(elsewhere.acquire(third, LONG)), Busy)
    waiting.release()
    revoke(waiting.client)
    assert (held(waiting.client) or {})["owner"] == third.token
    assert drive(elsewhere.release(third)) is None
    assert held(waiting.client) is None
    assert drive(waiting.port.release(waiting.claim)) is not None
    assert (held(waiting.client) or {})["owner"] == second.token
    drive(waiting.port.cancel(second))
    stranger.close()


# A release by force -------------------------------------------------------------------------------------------------


def frozen(url: str, number: int) -> Registry:
    """A process that listens, with so many waiters, and never says a word again."""
    process = Registry({"default": {"LOCATION": url}})
    store = process.store("default")
    for _ in range(number):
        claim = Claim(NAME, new_token(store.ident), LONG, "frozen")
        assert isinstance(drive(store.port(THREADS).acquire(claim, LONG)), Busy)
    return process


def revoke(client: redis.Redis) -> None:
    lock = held(client)
    assert lock is not None
    assert drive(registry().store("default").port(THREADS).revoke(NAME, int(lock["fence"])))


def test_a_release_by_force_hands_nothing_to_the_same_process_again(
    redis_url: str, redis_client: redis.Redis, beside: Beside
) -> None:
    """A frozen process was handed the lock once for each of its waiters, and had to be released from it each time."""
    holder, process = unrelated(KEY), frozen(redis_url, 3)
    behind = beside(unrelated, KEY, wait=LONG)
    queued(redis_client, KEY, 4)
    holder.release()
    assert (held(redis_client) or {})["holder"] == "frozen"
    revoke(redis_client)
    behind.result(SOON).release()
    process.close()


def test_where_nobody_else_waits_a_release_by_force_hands_it_to_the_next_of_the_same_process(
    redis_client: redis.Redis, beside: Beside
) -> None:
    holder = unrelated(KEY)
    first, second = [beside(unrelated, KEY, wait=LONG) for _ in range(2)]
    queued(redis_client, KEY, 2)
    holder.release()
    eventually(lambda: first.done() or second.done(), "one of them has it")
    revoke(redis_client)
    for lease in (first.result(SOON), second.result(SOON)):
        with suppress(LeaseLost):
            lease.release()
    assert left_behind(redis_client) == {}


def test_whoever_hears_that_it_is_done_leaves_its_queue(waiting: Waiting) -> None:
    """A stopped process had its line aside when all were sent away: a later lease went to its waiter, for nobody."""
    process = waiting.claim.token.store
    line = f"{{{NAME}}}:queue:{process}"
    kept: Any = waiting.client.zrange(line, 0, -1, withscores=True)
    holder = scope_of(waiting.holder).holds[0].claim
    assert drive(waiting.port.release(holder, LONG, "{}")) is None
    waiting.client.zadd(line, dict(kept))
    answer = waiting.wait()
    assert isinstance(answer, Busy)
    assert answer.record == "{}"
    assert waiting.client.exists(line) == 0
