"""The listing of a whole cluster, from an index for each slot: whole, in parts, and without what has ended."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from distlock_web import lock
from distlock_web.backends.redis import listing
from distlock_web.backends.redis.cluster import port as cluster_port
from distlock_web.backends.redis.cluster.slots import SlotKeys, slot_of
from distlock_web.core.backend import Claim, Granted, retry_once
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from distlock_web.testing.harness import Harness
from tests.support.callers import unrelated
from tests.support.modes import in_both_modes
from tests.support.stores.cluster import Cluster
from tests.support.waiting import LONG, eventually


def a_port() -> Any:
    return registry().store("default").backend.sync_port()


def hold(count: int, key: str = "listed") -> list[str]:
    """So many locks, anywhere, of which each ends after the one before."""
    names = [f"disLock:{key}{number}" for number in range(count)]
    for number, name in enumerate(names):
        assert isinstance(drive(a_port().acquire(Claim(name, new_token(), LONG + number), 0)), Granted)
    return names


@pytest.mark.usefixtures("cluster_store")
@in_both_modes
async def test_all_locks_of_the_cluster_are_shown(harness: Harness) -> None:
    names = hold(200)
    port: Any = harness.port
    assert sorted(line.name for line in await port.inspect()) == sorted(names)
    assert await port.names() == (200, names)
    assert await port.names(3) == (200, names[:3]), "those that end first, wherever they are"
    assert [line.name for line in await port.inspect(names[5:6])] == names[5:6]


@pytest.mark.usefixtures("cluster_store")
def test_many_locks_in_one_slot_are_listed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing, cluster_port):
        monkeypatch.setattr(module, "NAMES_BATCH", 3)
        monkeypatch.setattr(module, "BATCH", 2)
    neighbours = (name for name in map("disLock:n{}".format, count()) if slot_of(name) == 7)
    names = [next(neighbours) for _ in range(8)]
    for number, name in enumerate(names):
        assert isinstance(drive(a_port().acquire(Claim(name, new_token(), LONG + number), 0)), Granted)
    assert drive(a_port().names()) == (8, names)
    assert drive(a_port().names(5)) == (8, names[:5])
    assert [line.name for line in drive(a_port().inspect())] == names


def test_where_nothing_is_held_nothing_is_asked_but_who_has_an_index(cluster_store: Cluster) -> None:
    port = a_port()
    assert drive(port.inspect()) == []
    for master in cluster_store.masters:
        master.ask("CONFIG", "RESETSTAT")
    assert drive(port.inspect()) == []
    calls = [_calls(master) for master in cluster_store.masters]
    assert max(calls) <= 10, "a question for each slot would be 5,461"


def _calls(node: Any) -> int:
    stats = node.ask("INFO", "commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def test_an_index_lists_no_lock_that_has_ended_and_goes_by_itself(cluster_store: Cluster) -> None:
    with lock("ended", expire=LONG):
        pass
    expired = unrelated("ended", expire=0.5)
    master, index = cluster_store.master_of("disLock:ended"), SlotKeys("disLock:").index_of("disLock:ended")
    eventually(lambda: drive(a_port().names()) == (0, []), "its lease ends")
    assert 0 < master.ask("PTTL", index) <= 2 * 86_400_000
    master.ask("ZADD", index, time.time_ns() // 1000 - 61_000_000, "disLock:long gone")

    def is_gone() -> bool:  # one in 64 of those that take a lock cleans up
        with lock("ended", expire=90.0):
            assert master.ask("ZSCORE", index, "disLock:ended") is not None
        return master.ask("ZSCORE", index, "disLock:long gone") is None

    eventually(is_gone, "what has ended is forgotten")
    del expired


@in_both_modes
async def test_a_list_after_an_hour_in_which_every_node_has_ended_its_connections(
    harness: Harness, cluster_store: Cluster
) -> None:
    """An idle connection that has ended is no outage, however many nodes have one: see the server's `timeout`."""
    names = hold(20)
    assert len(await harness.port.inspect()) == len(names)
    for master in cluster_store.masters:
        master.client.client_kill_filter(_type="normal", skipme=True)
    assert len(await retry_once(harness.port.inspect)) == len(names)
