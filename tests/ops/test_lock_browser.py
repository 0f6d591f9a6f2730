"""Held locks in order and searched; and of very many, what is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis

from distlock_web import Lease, lock
from distlock_web.core.backend import LockInfo, Port
from distlock_web.core.registry import Registry, registry
from distlock_web.core.request_id import HolderInfo
from distlock_web.ops import lock_browser
from distlock_web.ops.held_locks import LockRow
from distlock_web.ops.lock_browser import Browsed, LockQuery, browse
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import Beside
from tests.support.waiting import eventually

Elsewhere = Callable[..., Lease]

NOW = time.time()


def names(browsed: Browsed) -> list[str]:
    return [row.lock.name.removeprefix("disLock:") for row in browsed.shown]


def row(name: str, *, waiters: int = 0, age: float = 1.0, left: float = 5.0) -> LockRow:
    since = NOW - age if age else 0.0
    info = LockInfo(name, 1, "", since, left, waiters, "held", since if waiters else None)
    return LockRow("default", info, HolderInfo(function=f"views.{name}"))


ROWS = [row("b", age=50, left=1), row("c", waiters=3, age=7), row("a", waiters=9, left=9), row("d", age=0, left=3)]


def ordered(rows: Iterable[LockRow]) -> str:
    return "".join(row.lock.name for row in sorted(rows, key=lock_browser._place))


def test_those_that_most_wait_for_are_in_front_then_the_oldest() -> None:
    assert ordered(ROWS) == "acbd"


def test_an_address_says_what_is_asked_for_and_no_more() -> None:
    query = LockQuery("order 7", done=True)
    assert LockQuery.of_address(query.address()) == query
    assert LockQuery().address() == "?"


def test_what_is_far_too_long_is_cut() -> None:
    """Every link of the page repeats it: a search of 1 MB made a page of 9 MB."""
    assert len(LockQuery.of({"q": "a " * 500_000}).address()) < 5000
    assert LockQuery.of({"sort": "age", "done": "x"}) == LockQuery()


# Over stores --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stores(settings: Any, store_settings: dict[str, Any]) -> Registry:
    settings.DISTLOCK = {"default": store_settings}
    return registry()


def test_totals_and_who_waits(stores: Registry, elsewhere: Elsewhere, beside: Beside) -> None:
    elsewhere("free")
    lease = elsewhere("wanted", expire=30)
    waiting = [beside(lambda: lock("wanted", expire=5, wait=20).acquire().release()) for _ in range(2)]
    eventually(lambda: browse(stores, LockQuery()).totals.waiting == 2, "both wait")
    time.sleep(0.05)
    found = browse(stores, LockQuery())
    assert names(found) == ["wanted", "free"]
    assert (found.totals.held, found.read, found.partial) == (2, 2, False)
    assert 0 < found.totals.longest_wait < found.totals.longest_hold
    first = found.rows[0]
    queue = lock_browser.waiters_of(stores, first, 10)
    assert queue is not None
    assert [waiter.since for waiter in queue] == sorted(waiter.since for waiter in queue)
    assert first.lock.waiting_since == pytest.approx(queue[0].since)
    assert all(HolderInfo.loads(waiter.holder).function for waiter in queue)
    assert len(lock_browser.waiters_of(stores, first, 1) or []) == 1
    lease.release()
    for each in waiting:
        each.result(20)


# Very many ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_browser, "READ_AT_MOST", 10)


def test_of_many_those_that_end_first_are_read(stores: Registry, elsewhere: Elsewhere, few: None) -> None:
    for number in range(30):
        elsewhere(f"order:{number:02}", expire=100 - number)
    found = browse(stores, LockQuery())
    assert names(found) == [f"order:{number:02}" for number in range(20, 30)]
    assert (found.totals.held, found.read, found.partial) == (30, 10, True)


def test_of_many_every_name_is_searched(stores: Registry, elsewhere: Elsewhere, few: None) -> None:
    for number in range(30):
        elsewhere(f"order:{number:02}", expire=100 - number)
    found = browse(stores, LockQuery(q="ORDER:00"))
    assert names(found) == ["order:00"]
    assert (found.totals.held, found.partial) == (30, True)
    assert len(browse(stores, LockQuery(q="order")).rows) == 10


def test_what_is_asked_of_a_store_with_very_many_locks(redis_store: str, redis_client: redis.Redis) -> None:
    """No command but these, and none whose time grows with the keyspace or the number of locks."""
    hold_many(redis_client, 5000)
    browse(registry(), LockQuery())  # connected, and the scripts are known
    redis_client.config_resetstat()
    found = browse(registry(), LockQuery())
    asked = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in redis_client.info("commandstats").items()}
    for ours in ("config|resetstat", "config", "info"):  # before Redis 7 a command is counted without its second word
        asked.pop(ours, None)
    assert (found.totals.held, found.read) == (5000, lock_browser.READ_AT_MOST)
    assert set(asked) <= {"evalsha", "time", "zrangebyscore", "zcount", "get", "pttl", "zrange", "ping"}
    assert asked["evalsha"] == 2 + 10  # 1000 names in one, 200 locks in one
    assert asked["get"] == asked["pttl"] == lock_browser.READ_AT_MOST


def test_no_name_is_missed_where_many_leases_end_at_once(redis_store: str, redis_client: redis.Redis) -> None:
    hold_many(redis_client, 2500, together=1200)
    found = browse(registry(), LockQuery(q="order:2499"))
    assert names(found) == ["order:2499"]
    assert found.totals.held == 2500
    port = registry().store("default").backend.sync_port()
    with pytest.raises(StopIteration) as end:
        port.names().send(None)
    held, listed = end.value.value
    assert (held, len(listed), len(set(listed))) == (2500, 2500, 2500)


def hold_many(client: redis.Redis, number: int, together: int = 1) -> None:
    """As many locks as ``number``; of ``together`` of them each the leases end in the same microsecond."""
    lock("any").acquire()  # makes the index
    (index,) = client.scan_iter(_type="zset")
    client.delete("disLock:any")
    client.zrem(index, "disLock:any")
    end = int((time.time() + 3600) * 1_000_000)
    token, now = "f" * 52, int(time.time() * 1_000_000)
    pipe = client.pipeline(transaction=False)
    for each in range(number):
        pipe.set(f"disLock:order:{each}", f"{token} held {now + each} {now} - []", px=3_600_000)
        pipe.zadd(index, {f"disLock:order:{each}": end + each // together})
    pipe.execute()


def test_a_store_without_pages_is_read_as_a_whole(stores: Registry, elsewhere: Elsewhere, few: None) -> None:
    class Plain:
        """A port with the verbs alone, as somebody's own store may have: it inherits the rest."""

        names: Any = Port.names
        waiters: Any = Port.waiters

        def __init__(self, port: Any) -> None:
            self._port = port

        def __getattr__(self, verb: str) -> Any:
            return getattr(self._port, verb)

    for number in range(30):
        elsewhere(f"order:{number:02}")
    store = stores.store("default")
    plain = Plain(store.backend.sync_port())
    store._backend.sync_port = lambda: plain  # type: ignore[method-assign]
    found = browse(stores, LockQuery())
    assert (found.totals.held, found.read, found.partial) == (30, 30, False)
    assert lock_browser.waiters_of(stores, found.rows[0], 10) is None


@pytest.mark.parametrize("verb", ["names", "inspect"])
def test_an_answer_that_is_lost_is_asked_for_again(injector: FaultInjector, elsewhere: Elsewhere, verb: str) -> None:
    elsewhere("order:7")
    injector.lose(verb, "answer")
    assert names(browse(registry(), LockQuery())) == ["order:7"]
    assert injector.calls.count(verb) == 2
    injector.lose(verb, "answer", "answer")
    assert list(browse(registry(), LockQuery()).errors) == ["default"]
