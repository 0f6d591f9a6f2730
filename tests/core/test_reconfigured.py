"""Stores that are configured anew while their locks are held and waited for."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from distlock_web import configure, lock
from distlock_web.backends.redis.transport import listener
from distlock_web.core.registry import registry
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import queued
from tests.support.waiting import SOON


def again(**changes: Any) -> None:
    """As a test's ``override_settings``, or an application that configures twice."""
    config = registry().store("default").config
    settings = {"BACKEND": config.backend, "LOCATION": config.location, **changes}
    configure({"default": {name: value for name, value in settings.items() if value}})


@pytest.mark.parametrize("changes", [{}, {"EXPIRE": 20}], ids=["the same", "others"])
def test_a_waiter_is_still_woken_when_the_stores_are_configured_anew(
    redis_store: str,
    redis_client: redis.Redis,
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """Its listener was closed under it: it slept on until the holder's lease had ended."""
    monkeypatch.setattr(listener, "IDLE_TIMEOUT", 0.1)  # of the store that nobody has any more
    holder = unrelated("a")
    waiting = beside(lock("a", wait=2 * SOON).acquire)
    queued(redis_client, "a")
    again(**changes)
    holder.release()
    waiting.result(SOON).release()


def test_a_lock_that_is_held_while_the_stores_are_configured_anew_is_held_to_its_end(store: str) -> None:
    """In memory its block ended with LeaseLost, for the locks of the process had been forgotten."""
    with lock("a") as lease:
        again()
        lease.extend()
    assert lease.state == "released"
    with lock("a"):
        pass
