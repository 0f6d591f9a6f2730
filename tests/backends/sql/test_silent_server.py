"""A database that hangs: the first requests pay for knowing it, one question at a time finds out when it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, now
from tests.support.callers import Beside, threads, unrelated
from tests.support.database_servers import MariaDBServer
from tests.support.proxy import Proxy
from tests.support.waiting import LONG, PATIENCE, SOON, eventually

pytestmark = pytest.mark.slow

THREADS = 8
#: Seconds: the least that MariaDB knows.
TIMEOUT = 1.5
PROBE = "distlock-sql-silent"


@pytest.fixture
def server(mariadb_server: MariaDBServer, mariadb_settings: dict[str, Any]) -> Iterator[MariaDBServer]:
    """The default store is on the session's server, which this test may freeze."""
    configure({"default": {**mariadb_settings, "OPTIONS": {"timeout": TIMEOUT}}})
    with lock("first"):
        pass
    yield mariadb_server
    mariadb_server.resume()


def refusals(seconds: float) -> list[float]:
    """How long each of the acquisitions took that one thread has tried for so many seconds."""
    took: list[float] = []
    until = now() + seconds
    while now() < until:
        begun = now()
        with pytest.raises(BackendUnavailable):
            unrelated(f"order:{len(took)}")
        took.append(now() - begun)
        time.sleep(0.01)
    return took


@pytest.mark.timing
def test_a_silent_database_costs_each_thread_one_time_out_and_no_more(server: MariaDBServer, beside: Beside) -> None:
    """It was asked again every second, by every thread that came: each waited its time-out again."""
    server.pause()
    trying = [beside(refusals, 3 * TIMEOUT) for _ in range(THREADS)]
    took = [thread.result(PATIENCE) for thread in trying]
    later = sorted(seconds for _, *rest in took for seconds in rest)
    assert sum(seconds > TIMEOUT * 0.9 for seconds in later) <= THREADS / 2, "the machine's own pauses"
    assert later[len(later) // 2] < TIMEOUT / 20
    assert threads(PROBE) == 1


@pytest.mark.alone
@pytest.mark.timing
def test_locks_work_again_as_soon_as_the_database_does(server: MariaDBServer) -> None:
    def outage() -> float:
        server.pause()
        with pytest.raises(BackendUnavailable):
            unrelated("order:7")
        time.sleep(TIMEOUT * 0.7)  # for which it was not asked
        server.resume()
        resumed = now()
        eventually(can_take, "it answers again")
        return now() - resumed

    assert min(outage() for _ in range(3)) < TIMEOUT / 2
    eventually(lambda: threads(PROBE) == 0, "nobody asks any more")


def can_take() -> bool:
    try:
        unrelated("order:8").release()
    except BackendUnavailable:
        return False
    return True


def test_a_lease_is_renewed_as_soon_as_the_database_answers(server: MariaDBServer) -> None:
    with lock("order:7", expire=6.0, renew=True) as lease:
        server.pause()
        with pytest.raises(BackendUnavailable):
            unrelated("order:8")
        eventually(lambda: lease.state == "unsure", "no answer to the renewal", SOON)
        server.resume()
        eventually(lambda: lease.state == "held", "renewed")


def test_a_lock_that_was_released_meanwhile_does_not_stay(server: MariaDBServer) -> None:
    lease = unrelated("order:7", expire=LONG)
    server.pause()
    with pytest.raises(BackendUnavailable):
        unrelated("order:8")
    begun = now()
    with pytest.raises(BackendUnavailable, match="asked again meanwhile"):
        lease.release()
    assert now() - begun < TIMEOUT
    server.resume()
    eventually(lambda: held() == [], "released", SOON)


def held() -> list[str]:
    try:
        return [line.name for line in drive(registry().store("default").backend.sync_port().inspect())]
    except BackendUnavailable as error:
        return [str(error)]


def test_nobody_asks_a_database_that_was_closed(server: MariaDBServer) -> None:
    server.pause()
    with pytest.raises(BackendUnavailable):
        unrelated("order:7")
    registry().close()
    server.resume()
    eventually(lambda: threads(PROBE) == 0, "it has ended", LONG)
    assert can_take()


@pytest.mark.timing
def test_connections_that_a_firewall_has_dropped_cost_one_time_out_in_all(postgres_settings: dict[str, Any]) -> None:
    """Whoever asks whether it answers must not take them one after the other, and wait a time-out for each."""
    url = make_url(postgres_settings["LOCATION"])
    assert url.port is not None
    with Proxy(url.port) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        configure({"default": {**postgres_settings, "LOCATION": through, "OPTIONS": {"timeout": TIMEOUT}}})
        pool = registry().store("default").backend._requests.connections  # type: ignore[attr-defined]
        unrelated("first").release()
        idle = [pool.borrow() for _ in range(6)]
        for connection in idle:
            pool.give_back(connection)
        proxy.forget()
        begun = now()
        eventually(can_take, "it is connected to anew")
        assert now() - begun < 2.5 * TIMEOUT
        registry().close()
