"""What the version before has left in each store, and this one finds: recorded by ``record.py``, and put in again."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import pytest

from distlock_web import KeyReused, LockBusy, attach, lock, once
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive
from tests.support.callers import Beside
from tests.support.upgrading import subjects
from tests.support.upgrading.stored import RECORDED, InSQL, Store, now_us, store_at
from tests.support.waiting import SOON, eventually

#: A fixture with settings for each kind of store that was recorded.
STORES = {
    "redis": "redis_settings", "redlock": "three_nodes", "sqlite": "sqlite_settings",
    "postgresql": "postgres_settings", "mariadb": "mariadb_settings", "zookeeper": "zookeeper_settings",
}  # fmt: skip
DAY_US = 24 * 3600 * 1_000_000


class Found(NamedTuple):
    """A store with what was recorded."""

    kind: str
    settings: dict[str, Any]
    facts: dict[str, Any]
    at: Store
    ahead: int  #: how much higher its fences are than they were, in µs


@pytest.fixture
def three_nodes(redlock_nodes: list[Any]) -> dict[str, Any]:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in redlock_nodes[:3])
    return {"LOCATION": f"redlock://{hosts}/0?restart_delay=0&socket_timeout=10&socket_connect_timeout=10"}


@pytest.fixture(params=STORES)
def found(request: pytest.FixtureRequest, settings: Any) -> Found:
    return _put_in(request, settings)


@pytest.fixture(params=["redis", "sqlite", "postgresql", "mariadb"])
def whole(request: pytest.FixtureRequest, settings: Any) -> Found:
    """The same of a store that can hand a lock on, keep records, and let several in."""
    return _put_in(request, settings)


@pytest.fixture(params=STORES)
def ahead(request: pytest.FixtureRequest, settings: Any) -> Found:
    """Where the clock was a day ahead then: fences that were given are higher than the time."""
    return _put_in(request, settings, ahead=DAY_US)


def _put_in(request: pytest.FixtureRequest, settings: Any, *, ahead: int = 0) -> Found:
    kind = request.param
    given: dict[str, Any] = request.getfixturevalue(STORES[kind])
    recorded = json.loads((RECORDED / f"{kind}.json").read_text())
    settings.DISTLOCK = {"default": given}
    with lock("first"):  # makes the tables
        pass
    at = store_at(kind, given["LOCATION"])
    later = now_us() - recorded["at"]
    higher = ahead and ahead + later
    at.load(recorded["stored"], later, higher)
    return Found(kind, given, recorded["facts"], at, higher)


def state_of(key: str) -> Any:
    """What the list says of a lock; None: nothing."""
    store = registry().store("default")
    return next(iter(drive(store.backend.sync_port().inspect([f"disLock:{key}"]))), None)


def _waits_here(key: str) -> bool:
    waiters = drive(registry().store("default").backend.sync_port().waiters(f"disLock:{key}", 10))
    if waiters is None:
        return bool(state_of(key).waiters)
    return any(f",{os.getpid()}," in each.holder for each in waiters)


@pytest.mark.parametrize("key", ["held", "queued", "cooldown"])
def test_what_is_held_is_refused_and_says_who_has_it(found: Found, key: str) -> None:
    with pytest.raises(LockBusy) as busy:
        lock(key).acquire()
    assert busy.value.retry_after > 3000
    listed = state_of(key)
    assert "record.py" in listed.holder
    assert listed.remaining > 3000
    if key == "held" and found.kind != "zookeeper":
        assert listed.fence == found.facts["held"]


def test_the_queue_of_processes_that_are_gone_is_seen(found: Found) -> None:
    assert state_of("queued").waiters == 2


def test_a_lease_ends_and_who_waits_has_the_lock(found: Found) -> None:
    with lock("brief", wait=60, expire=60) as lease:
        assert lease.fence is None or lease.fence > found.facts["held"]


def test_what_was_released_or_revoked_is_free(found: Found) -> None:
    with lock("fenced") as lease:
        assert lease.fence is None or lease.fence > found.facts["fenced"]
    if found.kind != "redlock":  # which cannot release by force
        with lock("forced"):
            pass


def test_a_fence_is_higher_than_all_before(ahead: Found) -> None:
    with lock("fenced") as lease:
        assert lease.fence is not None
        # ZooKeeper's are those of the lock's node, which is made anew here: it had begun a moment before.
        assert lease.fence > ahead.facts["fenced"] + ahead.ahead - 1_000_000


def test_a_ticket_is_taken_on_and_released(whole: Found) -> None:
    with pytest.raises(LockBusy):
        lock("detached").acquire()
    attach(whole.facts["ticket"]).release()
    with lock("detached"):
        pass


def test_a_ticket_that_waiters_stand_behind(whole: Found, beside: Beside) -> None:
    """Those of before are gone. Who waits here gets it when the ticket is used up."""
    waiter = beside(lambda: lock("handed", wait=60, expire=60).acquire())
    eventually(lambda: _waits_here("handed"), "it waits")
    attach(whole.facts["ticket with a queue"]).release()
    waiter.result(SOON).release()


def test_those_that_share_a_lock(whole: Found) -> None:
    for key, limit in (("limited", 1), ("limited", 2), ("limited", 3), ("read", 1), ("read", 2)):
        with pytest.raises(LockBusy):
            lock(key, limit=limit).acquire()
    with lock("read", shared=True):
        assert state_of("read").holders == 2


def test_a_run_of_once_that_goes_on(whole: Found) -> None:
    @once(key="running", keep=60)
    def run() -> None:
        raise AssertionError

    with pytest.raises(LockBusy):
        run()


def test_a_result_is_given_again(whole: Found) -> None:
    subjects.ran.clear()
    assert subjects.function() == whole.facts["function"]
    assert subjects.ran == []


@pytest.mark.parametrize("view", subjects.VIEWS)
def test_an_answer_is_given_again_to_who_asked(whole: Found, view: str) -> None:
    subjects.ran.clear()
    status, said = whole.facts["views"][view]
    assert subjects.ask(view, whole.settings) == (status, said)
    if view == "flask":
        assert subjects.ask(view, whole.settings, amount=6)[0] == 422
    else:
        with pytest.raises(KeyReused):
            subjects.ask(view, whole.settings, amount=6)
    assert subjects.ran == []


def test_the_tables_are_the_same(whole: Found) -> None:
    if isinstance(whole.at, InSQL):
        recorded = json.loads((RECORDED / f"{whole.kind}.json").read_text())["stored"]
        for table, rows in recorded.items():
            for row in rows[:1]:
                assert sorted(row) == whole.at.columns()[table]
