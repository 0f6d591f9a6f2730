"""A database that hangs: the first requests pay for knowing it, one thread finds out when it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url

from distlock_web import BackendUnavailable, DistLockError, configure, lock
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
PROBE = "distlock-outage"


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
    with suppress(BackendUnavailable):
        unrelated("order:8").release()
        return True
    return False


def test_a_lease_is_renewed_as_soon_as_the_database_answers_and_a_released_one_does_not_stay(
    server: MariaDBServer,
) -> None:
    released = unrelated("order:7", expire=LONG)
    with lock("order:8", expire=8.0, renew=True) as lease:
        server.pause()
        with pytest.raises(BackendUnavailable):
            unrelated("order:9")
        begun = now()
        with pytest.raises(BackendUnavailable, match="asked again meanwhile"):
            released.release()
        assert now() - begun < TIMEOUT
        eventually(lambda: lease.state == "unsure", "no answer to the renewal", SOON)
        server.resume()
        eventually(lambda: lease.state == "held", "renewed")
    eventually(lambda: held() == [], "released", SOON)


def held() -> list[str]:
    try:
        return [line.name for line in drive(registry().store("default").backend.sync_port().inspect())]
    except BackendUnavailable as error:
        return [str(error)]


def test_connections_that_a_firewall_has_forgotten_refuse_nobody(server_settings: dict[str, Any]) -> None:
    """One that was idle and got no answer was an outage: locks were refused, and took a time-out each."""
    url = make_url(server_settings["LOCATION"])
    assert url.port is not None
    with Proxy(url.port) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        configure({"default": {"LOCATION": through, "OPTIONS": {"timeout": TIMEOUT}}})
        pool = registry().store("default").backend._requests.connections  # type: ignore[attr-defined]
        unrelated("first").release()
        idle = [pool.borrow() for _ in range(6)]
        for connection in idle:
            pool.give_back(connection)
        proxy.forget()
        for number in range(3):
            unrelated(f"order:{number}").release()
        registry().close()


@pytest.fixture
def administration(postgres_settings: dict[str, Any]) -> Iterator[Connection]:
    """Of the PostgreSQL that the default store is on. It has a standby again in the end."""
    configure({"default": {**postgres_settings, "OPTIONS": {"timeout": 0.5, "max_connections": 4}}})
    with lock("first"):
        pass
    engine = create_engine(postgres_settings["LOCATION"], isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
        await_standby(connection, "")
    engine.dispose()


def await_standby(administration: Connection, name: str) -> None:
    """From now on a COMMIT waits for the standby of this name."""
    administration.execute(text(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'"))
    administration.execute(text("SELECT pg_reload_conf()"))
    shown = text("SHOW synchronous_standby_names")
    eventually(lambda: administration.scalar(shown) == name, "it is so")
    time.sleep(0.2)  # for the other processes of the server to read it


def test_commits_that_hang_cost_the_server_no_more_connections_than_the_pools_have(
    administration: Connection, beside: Beside
) -> None:
    """A read was answered, so that the silence was over: each request left one more COMMIT, to the server's last."""
    over, renewed = now() + 12 * 0.5, unrelated("renewed", expire=1.5, renew=True, on_lost="warn")

    def refused(number: int) -> list[float]:
        took = []
        while now() < over:
            begun = now()
            with pytest.raises(BackendUnavailable):
                unrelated(f"order:{number}")
            took.append(now() - begun)
            time.sleep(0.02)
        return took

    await_standby(administration, "gone")
    trying = [beside(refused, number) for number in range(8)]
    hang, most = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), 0
    while now() < over:
        most = max(most, administration.scalar(hang) or 0)
        time.sleep(0.05)
    took = sorted(seconds for thread in trying for seconds in thread.result(PATIENCE))
    assert took[len(took) // 2] < 0.25, "most are refused at once"
    assert 0 < most <= 4 + 2 + 2 + 1, "those of requests, renewals and releases, and the one that asks"
    await_standby(administration, "")
    eventually(can_take, "the standby is back", SOON)
    with suppress(DistLockError):  # it is lost by then, perhaps
        renewed.release()
