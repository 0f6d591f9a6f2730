"""Answers that are lost, cut in the middle, late, or never come: no orphan, no double grant, a bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from distlock_web import BackendUnavailable, LockBusy, configure
from distlock_web.backends.redis.transport.stream import Stream
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, now
from distlock_web.testing.contract.base import claim
from distlock_web.testing.harness import Harness
from tests.support.modes import in_both_modes
from tests.support.proxy import Proxy
from tests.support.redis_lock import (
    fence_of,
    left_behind,
    the_lock,
    until_queued,
    warm_up,
)
from tests.support.waiting import SLACK

#: How scripts are called: by name, or by source where the server does not know them.
EVAL = b"EVAL"


@pytest.fixture
def proxied(proxy: Proxy) -> Proxy:
    """The default store is behind this proxy; an answer that is late on a busy machine is waited for."""
    configure({"default": {"LOCATION": proxy.url, "OPTIONS": {"socket_timeout": 5}}})
    return proxy


@pytest.mark.slow
@pytest.mark.parametrize("cut", [True, False])
@in_both_modes
async def test_a_hand_over_that_is_never_heard_costs_one_lease(
    harness: Harness, proxied: Proxy, redis_client: redis.Redis, cut: bool
) -> None:
    """With the connection: known at once, and everybody asks. Without a trace: known when the old lease had ended."""
    expire = 2.0
    held = await harness.acquire(the_lock(expire=expire))
    waiting = harness.unrelated(lambda: harness.acquire(the_lock(wait=60)))
    await until_queued(harness, redis_client)
    proxied.lose_message(cut=cut)
    released = now()
    await harness.release(held)
    lease = await waiting.result()
    assert proxied.lost == 1
    assert now() - released < expire + SLACK
    assert fence_of(redis_client) == str(lease.fence)
    assert lease.remaining > 20
    await harness.release(lease)
    assert left_behind(redis_client) == {}


async def test_a_cancellation_in_the_turn_in_which_a_release_ends_is_not_swallowed(
    redis_store: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A TaskGroup or a timeout waits for the task to notice."""
    noticed = True
    receive = Stream.data_received

    def receive_and_cancel(self: Stream, data: bytes) -> None:
        receive(self, data)
        task.cancel()

    async def visitor() -> None:
        nonlocal noticed
        async with the_lock():
            pass  # the scripts are known
        async with the_lock():
            monkeypatch.setattr(Stream, "data_received", receive_and_cancel)
        noticed = False
        await asyncio.sleep(0)

    task = asyncio.ensure_future(visitor())
    with caplog.at_level("WARNING", "distlock_web"), pytest.raises(asyncio.CancelledError):
        await task
    assert noticed
    assert caplog.messages == [], "no answer was lost"
    assert left_behind(redis_client) == {}


@in_both_modes
async def test_one_who_does_not_wait_leaves_nothing_of_a_lost_question(harness: Harness, proxied: Proxy) -> None:
    """Asked again it was busy, and nobody undid the first: it was remembered for as long as the process lived."""
    await warm_up(harness)
    held = await harness.acquire(the_lock())

    async def refused() -> None:
        proxied.lose_answer(EVAL)
        with pytest.raises(LockBusy):
            await harness.acquire(the_lock())

    await harness.unrelated(refused).result()
    assert proxied.lost == 1
    assert not harness.store.backend.server.ambiguous  # type: ignore[attr-defined]
    await harness.release(held)


def refused(*_: object) -> None:
    raise BackendUnavailable("It does not answer.")


def test_of_a_lock_that_is_kept_for_a_while_nothing_is_remembered(
    redis_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer to its acquisition, and none to its release: the token was kept for as long as the process lived."""
    port: Any = registry().store("default").port(THREADS)
    mine, ambiguous = claim(), port._server.ambiguous
    drive(port.acquire(mine, 0))
    ambiguous.add(mine.token)
    monkeypatch.setattr(port._exchange, "run", refused)
    with pytest.raises(BackendUnavailable):
        drive(port.release(mine, 1.0))
    assert not ambiguous
