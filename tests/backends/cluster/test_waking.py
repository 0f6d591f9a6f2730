"""Waiting in a cluster: a release wakes the one whose turn it is, wherever the lock is, and nobody else."""

from __future__ import annotations

import time
from functools import partial

import pytest

from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive
from tests.support.callers import Beside, unrelated
from tests.support.lab import Lab
from tests.support.modes import modes
from tests.support.stores.cluster import Cluster
from tests.support.waiting import LONG, SLACK, SOON, eventually


def is_waited_for(key: str) -> bool:
    port = registry().store("default").backend.sync_port()
    return any(line.waiters for line in drive(port.inspect([f"disLock:{key}"])))


@pytest.mark.slow
@modes
def test_a_release_wakes_the_waiter_of_another_process(cluster_lab: Lab, mode: str) -> None:
    """By the message, and not by the end of the lease: both live for longer than the test waits."""
    holder, waiter = cluster_lab.ready({"hold": True, "expire": LONG, "mode": mode}, {"expire": LONG, "mode": mode})
    holder.go()
    holder.saw("acquired")
    waiter.go()
    waiter.saw("joined")
    holder.go()
    released, begun = holder.saw("released"), waiter.saw("acquired")
    assert begun.at - released.at < SLACK
    assert [holder.join(), waiter.join()] == [0, 0]


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


def test_waiting_costs_requests_at_the_node_of_the_lock_alone(cluster_store: Cluster, beside: Beside) -> None:
    here, *others = cluster_store.masters
    key = cluster_store.name_at(here, "alone")
    unrelated(key).release()
    holder = unrelated(key)
    before = [_calls(other) for other in others]
    waiter = beside(unrelated, key, wait=LONG)
    eventually(lambda: _queued(here) == 1, "it waits")
    holder.release()
    waiter.result(SOON).release()
    assert [_calls(other) for other in others] == before


def _calls(node: object) -> int:
    stats = node.ask("INFO", "commandstats")  # type: ignore[attr-defined]
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha", "subscribe"))


def _queued(node: object) -> int:
    return len(node.ask("KEYS", "*:queue"))  # type: ignore[attr-defined]
