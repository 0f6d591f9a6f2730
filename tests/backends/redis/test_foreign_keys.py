"""The list of held locks, when others have been at the keys."""

from __future__ import annotations

import redis

from distlock_web import lock
from distlock_web.core import registry
from distlock_web.core.runtime import drive


def test_a_stranger_s_key_under_a_listed_name_hides_only_itself(redis_store: str) -> None:
    """One SET over a lock's name took the whole admin page down."""
    with lock("a"), lock("b", on_lost="warn"), redis.Redis.from_url(redis_store) as client:
        client.set("disLock:b", "a unrelated's")
        held = drive(registry.registry().store("default").backend.sync_port().inspect())
        assert [line.name for line in held] == ["disLock:a"]
        client.delete("disLock:b")
