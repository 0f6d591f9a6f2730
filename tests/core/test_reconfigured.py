"""Stores that are configured anew while their locks are held and waited for."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import redis

from distlock_web import configure, lock
from distlock_web.backends.memory import MemoryBackend
from distlock_web.backends.redis.transport import listener
from distlock_web.core.config import StoreConfig
from distlock_web.core.registry import configured, registry, unconfigure
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import queued
from tests.support.waiting import SOON


class Own(MemoryBackend):
    """Somebody's store, whose end fails."""

    closed: ClassVar[list[str]] = []

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config)
        self.alias = config.alias

    def close(self) -> None:
        self.closed.append(self.alias)
        if self.alias == "b":
            raise OSError("Bad file descriptor")


@pytest.mark.parametrize("end", ["configured anew", "forgotten"])
def test_a_store_that_cannot_be_closed_keeps_no_other_one_open_nor_the_new_ones_out(
    caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """Its error came out of ``configure``, and the stores before it stayed in force."""
    Own.closed.clear()
    before = configure({alias: {"BACKEND": f"{__name__}.Own"} for alias in ("default", "b", "c")})
    for alias in before.stores:
        lock("a", store=alias).acquire().release()
    if end == "forgotten":
        unconfigure()
        assert configured() is None
    else:
        configure({"default": {"BACKEND": "memory"}, "new": {"BACKEND": "memory"}})
        lock("a", store="new").acquire().release()
    assert Own.closed == ["default", "b", "c"]
    assert "'b' could not be closed" in caplog.text


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
