"""A lock that the store lost before its lease was over: it did not "end before the block did"."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import redis

from distlock_web import Lease, LeaseLost, lock


def test_a_flush_is_not_called_the_end_of_a_lease(redis_store: str, redis_client: redis.Redis) -> None:
    with pytest.raises(LeaseLost) as caught, lock("a", expire=60):
        redis_client.flushall()
    text = str(caught.value)
    assert caught.value.reason == "expired"
    assert re.search(r"though its lease had 5\d\.", text)
    assert "released by force, flushed, evicted or deleted" in text
    assert "a longer expire" not in text


def test_nor_is_it_where_somebody_else_has_it_by_then(
    redis_store: str, redis_client: redis.Redis, elsewhere: Callable[..., Lease]
) -> None:
    with pytest.raises(LeaseLost) as caught, lock("a", expire=60):
        redis_client.flushall()
        elsewhere("a")
    assert caught.value.reason == "taken"
    assert "(released by force, flushed, evicted or deleted), and somebody else has it now" in str(caught.value)


def test_the_end_of_a_lease_is_called_so(memory_store: None) -> None:
    with pytest.raises(LeaseLost, match="ended before the block did"), lock("a", expire=0.05):
        time.sleep(0.1)
