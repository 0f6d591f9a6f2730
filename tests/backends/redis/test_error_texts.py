"""What a refusal says: this store's own prefix, and no more alarm than there is reason for."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import redis

from distlock_web import BackendUnavailable, ConfigurationError, configure, lock
from distlock_web.testing.servers import RedisServer, free_port
from tests.support.redis_lock import documented_rules


def test_the_rights_that_are_missing_are_for_this_stores_prefix(make_redis: Callable[..., RedisServer]) -> None:
    server = make_redis()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~disLock:*", "&*", "+@all")
    configure({"default": {"LOCATION": f"redis://shop:secret@127.0.0.1:{server.port}", "PREFIX": "shop:lock:"}})
    with pytest.raises(ConfigurationError) as caught, lock("a"):
        pass
    assert " ~shop:lock:* ~{shop:lock:* " in str(caught.value)
    rules = " ".join(documented_rules()).replace("disLock:", "shop:lock:")
    assert rules in str(caught.value), "what the page says, which is tried there"


@pytest.mark.parametrize("wait", [0, 5])
def test_where_nothing_was_taken_nothing_is_said_to_be_left(
    make_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture, wait: float
) -> None:
    caplog.set_level(logging.DEBUG, logger="distlock_web")
    for location, kind in (
        (make_redis("--requirepass", "secret").url, ConfigurationError),
        (f"redis://127.0.0.1:{free_port()}", BackendUnavailable),
    ):
        configure({"default": {"LOCATION": location}})
        with pytest.raises(kind), lock("a", wait=wait, expire=0.5):
            pass
    assert "claim" not in caplog.text
