"""Connections that the server has closed meanwhile: a question is asked again, and a loss is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from distlock_web import LeaseLost, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.testing.harness import AsyncHarness, Harness
from distlock_web.web.held_locks import force_release
from distlock_web.web.held_locks import list_all as listing
from tests.support.callers import unrelated
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, NAME, hold_for_another

pytestmark = pytest.mark.usefixtures("redis_store")


def close_idle(client: redis.Redis) -> None:
    """As the server's ``timeout`` does, a restart, a firewall."""
    client.client_kill_filter(_type="normal", skipme=True)


@in_both_modes
async def test_whether_it_is_held_is_asked_again(harness: Harness, redis_client: redis.Redis) -> None:
    lease = await harness.acquire(lock(KEY, expire=30))
    close_idle(redis_client)
    assert await (lock(KEY).alocked() if isinstance(harness, AsyncHarness) else answered(lock(KEY).locked))
    await harness.release(lease)


async def answered(question: Callable[[], bool]) -> bool:
    return question()


def test_the_admin_page_lists_and_releases_by_force_over_a_stale_connection(redis_client: redis.Redis) -> None:
    lease = unrelated(KEY)
    close_idle(redis_client)
    found = listing(registry())
    assert found.errors == {}
    (row,) = found.rows
    assert row.lock.name == NAME
    close_idle(redis_client)
    force_release(registry(), row, "the test")
    close_idle(redis_client)
    with pytest.raises(LeaseLost) as lost:
        lease.release()
    assert lost.value.reason == "revoked"


def lose(client: redis.Redis, how: str, lease: Any) -> None:
    if how == "revoked":
        assert drive(registry().store("default").port(THREADS).revoke(NAME, lease.fence))
        return
    client.flushall()
    if how == "taken":
        hold_for_another(client, 30_000)


@pytest.mark.parametrize("connection", ["open", "closed"])
@pytest.mark.parametrize("how", ["revoked", "expired", "taken"])
@in_both_modes
async def test_a_loss_is_told_also_over_a_stale_connection(
    harness: Harness, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture, how: str, connection: str
) -> None:
    """The first release met a dead connection, and the answer to the second was thrown away: nobody heard of it.

    That it was taken by force is certain. The others may be the first release, done and its answer lost: a warning.
    """
    lease = await harness.acquire(lock(KEY, expire=30))
    lose(redis_client, how, lease)
    if connection == "closed":
        close_idle(redis_client)
    with caplog.at_level(logging.WARNING, "distlock_web"):
        reason = None
        try:
            async with harness.inside(lease):
                pass
        except LeaseLost as lost:
            reason = lost.reason
    if connection == "open" or how == "revoked":
        assert reason == how
    else:
        assert reason in (None, how)
        (record,) = [record for record in caplog.records if NAME in record.getMessage()] if reason is None else [None]
        assert record is None or "answer to its release did not come" in record.getMessage()


@in_both_modes
async def test_a_release_over_a_stale_connection_that_lost_nothing_is_silent(
    harness: Harness, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "distlock_web"):
        for _ in range(3):
            async with harness.inside(lock(KEY, expire=30)):
                close_idle(redis_client)
    assert [record.getMessage() for record in caplog.records] == []
