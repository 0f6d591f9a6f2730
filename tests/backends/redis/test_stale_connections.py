"""Connections that the server has closed meanwhile: a question is asked again, and a loss is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from distlock_web import LeaseLost, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.testing.harness import Harness
from tests.support.modes import in_both_modes
from tests.support.redis_lock import KEY, NAME, hold_for_another

pytestmark = pytest.mark.usefixtures("redis_store")


def close_idle(client: redis.Redis) -> None:
    """As the server's ``timeout`` does, a restart, a firewall."""
    client.client_kill_filter(_type="normal", skipme=True)


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
        assert record is None or "answer to its release was lost" in record.getMessage()
