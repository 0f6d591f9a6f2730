"""What differs in Redis 6.2: its errors inside scripts, and ASK where 7 answers TRYAGAIN."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from distlock_web import BackendUnavailable, configure, lock
from distlock_web.backends.redis.cluster import route
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive
from tests.support.callers import Beside, unrelated
from tests.support.redis_lock import KEY, NAME
from tests.support.requirements import require, wheel_redis_program
from tests.support.stores.cluster import MASTERS, Cluster, ClusterNode
from tests.support.waiting import LONG, SOON, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def old_nodes() -> Iterator[Cluster]:
    require("redis-6.2", wheel_redis_program)
    with ExitStack() as stack, ThreadPoolExecutor(MASTERS) as pool:
        nodes = [ClusterNode(program=wheel_redis_program()) for _ in range(MASTERS)]
        list(pool.map(stack.enter_context, nodes))
        yield Cluster(nodes)


@pytest.fixture
def old_cluster(old_nodes: Cluster) -> Cluster:
    """The default store is an empty cluster of Redis 6.2."""
    assert old_nodes.nodes[0].ask("INFO", "server")["redis_version"].startswith("6.2.")
    for master in old_nodes.masters:
        master.ask("FLUSHALL")
    configure({"default": {"LOCATION": old_nodes.url}})
    return old_nodes


def test_locks_are_listed_extended_and_handed_over(old_cluster: Cluster, beside: Beside) -> None:
    keys = [old_cluster.name_at(master) for master in old_cluster.masters]
    holders = [unrelated(key) for key in keys]
    waiter = beside(unrelated, keys, wait=LONG)
    port = registry().store("default").backend.sync_port()

    def waiters() -> list[int]:
        return sorted(line.waiters for line in drive(port.inspect()))

    for number, holder in enumerate(sorted(holders, key=lambda lease: lease.names), start=1):
        eventually(lambda: sum(waiters()) == 1, "it waits for one of them")
        assert len(waiters()) == len(keys)
        holder.extend()
        holder.release()
        assert number <= len(keys)
    lease = waiter.result(SOON)
    lease.extend()
    lease.release()
    assert waiters() == []


def test_a_slot_moves_while_its_lock_is_held_and_waited_for(
    old_cluster: Cluster, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "FOLLOW", 0.1)
    holder = unrelated(KEY)
    waiter = beside(unrelated, KEY, wait=LONG)
    source = old_cluster.master_of(NAME)
    eventually(lambda: source.ask("KEYS", "*:queue"), "it waits")
    slot = source.ask("CLUSTER", "KEYSLOT", NAME)
    move = old_cluster.move(slot)
    first, *others = move.left()
    move.carry(first)
    with pytest.raises(BackendUnavailable, match="moving"):
        lock(KEY, expire=LONG).acquire()
    move.carry(*others)
    holder.extend()
    move.finish()
    holder.release()
    waiter.result(SOON).release()
