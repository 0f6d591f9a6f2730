"""Keys of others where the keys of locks should be: each is refused or left out, none is overwritten."""

from __future__ import annotations

import pytest
import redis

from distlock_web import ConfigurationError, LockBusy, lock
from distlock_web.core.backend import Claim
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from distlock_web.flask.lock_pages import environment
from distlock_web.locks.lease import scope_of
from distlock_web.web.lock_pages import Viewer, list_context, lock_context
from distlock_web.web.lock_presenter import Links
from tests.support.callers import Beside
from tests.support.waiting import LONG, SOON

#: Of a lock's value, as the scripts write it.
FIELDS = ("token", "state", "fence", "since", "before", "holder")
VIEWER = Viewer(Links("/locks/", "/locks/lock/", "/locks/release/"), may_release=True)


FORGED = {
    "holder": b'["","","","h",Infinity,1,""]',
    "since": b"9" * 18,
    "fence": b"9" * 5000,
    "before": b"\xff" * 32,
}


@pytest.mark.parametrize("field", FORGED)
def test_what_another_program_forged_hides_only_itself(redis_store: str, field: str, beside: Beside) -> None:
    """One number that is none took the whole page down, and made an error of what is just busy."""
    with lock("fine") as lease, redis.Redis.from_url(redis_store) as client:
        value = dict(zip(FIELDS, client.get(lease.name).split(b" ", 5), strict=True))
        client.set("disLock:forged", b" ".join({**value, field: FORGED[field]}.values()), px=60_000)
        client.zadd("disLock:~held", {"disLock:forged": 1e300, b"disLock:\xff": 1e16, "disLock:none": 4e15 + 0.5})
        page = environment.get_template("list.html").render(list_context({}, VIEWER))
        detail = {"store": "default", "name": "disLock:forged"}
        assert environment.get_template("lock.html").render(lock_context(detail, VIEWER))
        with pytest.raises(LockBusy):
            beside(lambda: lock("forged", wait=0).acquire()).result(SOON)
    assert "<span>fine</span>" in page


@pytest.mark.usefixtures("redis_store")
def test_a_foreign_key_ends_no_other_lease(redis_client: redis.Redis) -> None:
    """One key of another kind failed the whole batch of renewals, and with it every lease of the process."""
    redis_client.hset("disLock:foreign", "x", "y")
    with lock("a", expire=LONG) as lease:
        mine, foreign = scope_of(lease).holds[0].claim, Claim("disLock:foreign", new_token(), LONG)
        port = registry().store("default").renewal_port()
        losses = drive(port.extend([foreign, mine]))
    assert losses[0] is not None
    assert losses[1] is None


FOREIGN = {
    "a cart": ("cart", "precious"),
    "the lock of another library": ("8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1"),
}


@pytest.mark.usefixtures("redis_store")
@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("field", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_hash_at_the_locks_name_is_refused_and_left_alone(
    redis_client: redis.Redis, field: tuple[str, str], wait: float
) -> None:
    """It was taken for a free lock: overwritten by the acquisition, deleted by the release."""
    redis_client.hset("disLock:a", *field)
    redis_client.pexpire("disLock:a", 60_000)
    with pytest.raises(ConfigurationError, match="WRONGTYPE"), lock("a", expire=1, wait=wait):
        pass
    assert redis_client.hgetall("disLock:a") == dict([field])
    assert redis_client.pttl("disLock:a") > 30_000
