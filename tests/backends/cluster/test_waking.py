"""Waiting in a cluster: a release wakes the one whose turn it is, wherever the lock is, and nobody else."""

from __future__ import annotations

import time
from functools import partial

from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive
from tests.support.callers import Beside, unrelated
from tests.support.stores.cluster import Cluster
from tests.support.waiting import LONG, SOON, eventually


def is_waited_for(key: str) -> bool:
    port = registry().store("default").backend.sync_port()
    return any(line.waiters for line in drive(port.inspect([f"disLock:{key}"])))


def test_one_who_waits_at_every_node_hears_each_message_once(cluster_store: Cluster, beside: Beside) -> None:
    """PUBLISH reaches the listeners of all nodes. Those of the others took the news for that of a waiter who has gone
    without a word, and gave the lock away.
    """
    keys = [cluster_store.name_at(master, "heard") for master in cluster_store.masters]
    holders = [unrelated(key) for key in keys]
    waiters = [beside(unrelated, key, wait=LONG) for key in keys]
    for key in keys:
        eventually(partial(is_waited_for, key), "it waits")
    for holder, waiter in zip(holders, waiters, strict=True):
        assert not waiter.done()
        holder.release()
        lease = waiter.result(SOON)
        time.sleep(0.3)  # for what should not happen: a cancellation, from the thread that does what was put off
        lease.extend()
        lease.release()
    assert [len(master.ask("PUBSUB", "CHANNELS", "distlock:wake:*")) for master in cluster_store.masters] == [1, 1, 1]
