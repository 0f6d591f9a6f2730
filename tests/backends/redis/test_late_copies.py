"""Law 3 at its worst: the network delivers an old request once more, after its sender has gone on."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from distlock_web.core.backend import SHARED, Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive, new_token
from tests.support.callers import unrelated
from tests.support.redis_lock import KEY, NAME, held, left_behind
from tests.support.waiting import LONG

pytestmark = pytest.mark.usefixtures("redis_store")


def request_of(how: str) -> tuple[Any, Claim, Any]:
    """The port, a claim, and what made it the owner, to be sent again; its lease is short."""
    port, claim, transit = registry().store("default").port(THREADS), Claim(NAME, new_token(), 2.0, "x"), new_token()
    if how == "acquire":
        return port, claim, lambda: drive(port.acquire(claim, 0))
    first = claim._replace(token=new_token())
    assert isinstance(drive(port.acquire(first, 0)), Granted)
    assert drive(port.detach(first, transit, LONG)) is None
    return port, claim, lambda: drive(port.attach(claim, transit))


@pytest.mark.parametrize("how", ["acquire", "attach"])
def test_a_copy_does_not_shorten_a_lease(redis_client: redis.Redis, how: str) -> None:
    """It was extended since; the copy cut it to its first length, and another got the lock meanwhile."""
    port, claim, send = request_of(how)
    granted = send()
    assert drive(port.extend([claim._replace(expire=LONG)])) == [None]
    assert send().fence == granted.fence
    assert redis_client.pttl(NAME) > LONG * 900
    assert drive(port.release(claim)) is None


def test_a_copy_of_attach_takes_nothing_from_the_next_holder(redis_client: redis.Redis) -> None:
    port, claim, send = request_of("attach")
    send()
    assert drive(port.release(claim)) is None
    send()
    assert left_behind(redis_client) == {}, "over is over"
    successor = unrelated(KEY)
    before = held(redis_client)
    send()
    assert held(redis_client) == before
    successor.release()


def test_a_copy_of_an_acquisition_that_comes_late_lives_for_one_lease_at_most(redis_client: redis.Redis) -> None:
    port, claim, send = request_of("acquire")
    send()
    assert drive(port.release(claim)) is None
    send()
    assert 0 < redis_client.pttl(NAME) <= 2000


@pytest.mark.parametrize("limit", [None, 2, SHARED])
def test_a_copy_that_comes_after_the_end_does_not_list_a_lock_that_is_free(
    redis_client: redis.Redis, limit: int | None
) -> None:
    """The lock remembers whose it was, and refuses the copy; until its lease would have ended it was listed as held."""
    port, claim, _ = request_of("acquire")
    token = claim.token if limit is None else claim.token.limited(limit)
    claim = claim._replace(token=token)
    drive(port.acquire(claim, 0))
    drive(port.cancel_now(claim))
    assert isinstance(drive(port.acquire(claim, 0)), Busy)
    assert redis_client.zscore("disLock:~held", NAME) is None
    if limit is not None:  # beside one that has it, it is listed
        beside = claim._replace(token=new_token().limited(limit), expire=LONG)
        drive(port.acquire(beside, 0))
        assert isinstance(drive(port.acquire(claim, 0)), Busy)
        assert drive(port.names()) == (1, [NAME])
        drive(port.release(beside))
