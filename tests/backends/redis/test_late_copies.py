"""Law 3 at its worst: the network delivers an old request once more, after its sender has gone on."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import redis

from distlock_web import Lease, attach, configure
from distlock_web.testing.servers import RedisServer
from tests.support.callers import unrelated
from tests.support.proxy import Proxy
from tests.support.redis_lock import KEY, NAME, fence_of, held, left_behind
from tests.support.waiting import LONG


class Copies:
    """The requests of each verb, as they were sent."""

    def __init__(self, proxy: Proxy, server: RedisServer) -> None:
        self._proxy = proxy
        self._server = server

    def of(self, work: Callable[[], Lease | str | None]) -> tuple[Lease | str | None, Callable[[], bytes]]:
        """What the work returns, and a call that delivers its last request once more."""
        result = work()
        request = self._proxy.asked[-1]
        assert b"EVAL" in request
        return result, lambda: self._deliver(request)

    def _deliver(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._server.port), 5) as connection:
            connection.sendall(request)
            return connection.recv(65536)


@pytest.fixture
def copies(proxy: Proxy, redis_server: RedisServer) -> Copies:
    configure({"default": {"LOCATION": proxy.url}})
    for _ in range(2):  # every script is known, and none is sent by its source
        attach(unrelated("known").detach()).release()
    return Copies(proxy, redis_server)


def lease_of(result: Lease | str | None) -> Lease:
    assert isinstance(result, Lease)
    return result


def test_a_copy_of_attach_does_not_shorten_a_lease(copies: Copies, redis_client: redis.Redis) -> None:
    """It was extended since; the copy cut it to its first length, and another got the lock meanwhile."""
    ticket = unrelated(KEY, expire=2).detach(transit=30)
    result, deliver = copies.of(lambda: attach(ticket))
    lease = lease_of(result)
    lease.extend(LONG)
    before = redis_client.pttl(NAME)
    deliver()
    assert redis_client.pttl(NAME) > before - 1000
    assert fence_of(redis_client) == str(lease.fence)
    lease.release()
    deliver()
    assert left_behind(redis_client) == {}, "over is over"


def test_a_copy_of_attach_takes_nothing_from_the_next_holder(copies: Copies, redis_client: redis.Redis) -> None:
    ticket = unrelated(KEY).detach()
    result, deliver = copies.of(lambda: attach(ticket))
    lease_of(result).release()
    successor = unrelated(KEY)
    before = held(redis_client)
    deliver()
    assert held(redis_client) == before
    successor.release()


def test_a_copy_of_an_acquisition_does_not_shorten_a_lease(copies: Copies, redis_client: redis.Redis) -> None:
    result, deliver = copies.of(lambda: unrelated(KEY, expire=2))
    lease = lease_of(result)
    lease.extend(LONG)
    deliver()
    assert redis_client.pttl(NAME) > LONG * 900
    assert fence_of(redis_client) == str(lease.fence)
    lease.release()


def test_a_copy_of_an_acquisition_that_comes_late_lives_for_one_lease_at_most(
    copies: Copies, redis_client: redis.Redis
) -> None:
    result, deliver = copies.of(lambda: unrelated(KEY, expire=1))
    lease_of(result).release()
    deliver()
    assert 0 < redis_client.pttl(NAME) <= 1000
