"""A slot that moves to another node while locks in it are held and waited for: no two holders, and nobody forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.crc import key_slot

from distlock_web import BackendUnavailable, LockBusy, configure, lock
from distlock_web.backends.redis.cluster import route
from distlock_web.core.backend import Claim
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token, now
from distlock_web.locks.lease import scope_of
from tests.support.callers import Beside, unrelated
from tests.support.lab import Lab
from tests.support.modes import modes
from tests.support.redis_lock import KEY, NAME
from tests.support.stores.cluster import Cluster, Move
from tests.support.waiting import LONG, SLACK, SOON, eventually

pytestmark = pytest.mark.slow

SLOT = key_slot(NAME.encode())


def keys_of(move: Move) -> dict[str, str]:
    """The keys of the one lock that lies in the slot, by what they are."""
    found = {}
    for key in move.left():
        kind = "lock" if key == NAME else "index" if "~held" in key else "queue" if key.endswith(":queue") else "line"
        found[kind] = key
    return found


def is_waited_for(cluster: Cluster) -> bool:
    return bool(cluster.serving(SLOT).ask("KEYS", "*:queue"))


@modes
def test_a_lock_that_moved_is_still_its_holders_and_goes_to_its_waiter(
    cluster: Cluster, cluster_lab: Lab, mode: str
) -> None:
    """Both learn of the move by asking; the waiter, who sleeps at the old node, within one lease."""
    expire = 2.0
    holder, waiter = cluster_lab.ready(
        {"hold": True, "expire": expire, "renew": True, "mode": mode}, {"expire": expire, "mode": mode}
    )
    holder.go()
    holder.saw("acquired")
    waiter.go()
    waiter.saw("joined")
    cluster.move(SLOT).finish()
    holder.go()
    released, begun = holder.saw("released"), waiter.saw("acquired")
    assert [holder.join(), waiter.join()] == [0, 0]
    assert begun.at - released.at < expire + SLACK
    assert cluster_lab.history.violations(counter=cluster_lab.counter) == []


def test_one_word_of_a_move_wakes_all_who_wait_in_this_process(cluster_store: Cluster, beside: Beside) -> None:
    """Their leases are long: without it they would learn of the move when those end."""
    holder = unrelated(KEY)
    waiter = beside(unrelated, KEY, wait=LONG)
    eventually(lambda: is_waited_for(cluster_store), "it waits")
    move = cluster_store.move(SLOT)
    move.finish()
    holder.extend()
    eventually(lambda: _heard(move), "it listens at the new node")
    holder.release()
    waiter.result(SOON).release()


def _heard(move: Move) -> bool:
    """Whether somebody listens at the slot's new node."""
    return any(move.target.id in channel for channel in move.target.ask("PUBSUB", "CHANNELS", "distlock:wake:*"))


def test_a_lock_whose_keys_are_at_both_ends_is_released_when_they_are_together(
    cluster_store: Cluster, beside: Beside
) -> None:
    holder = unrelated(KEY)
    waiter = beside(unrelated, KEY, wait=LONG)
    eventually(lambda: is_waited_for(cluster_store), "it waits")
    move = cluster_store.move(SLOT)
    move.carry(keys_of(move)["index"])
    release = beside(holder.release)
    finishing = threading.Timer(0.2, move.finish)
    finishing.start()
    release.result(SOON)
    waiter.result(SOON).release()
    finishing.join()


@pytest.mark.parametrize("ahead", ["lock", "queue", "line", "index", "lock queue index"])
def test_no_request_makes_a_key_that_would_stop_the_move(
    cluster_store: Cluster, beside: Beside, ahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MIGRATE refuses a key that is at the other end already. So with some keys of the lock in front, everything
    that could be asked meanwhile is asked.
    """
    monkeypatch.setattr(route, "FOLLOW", 0.1)
    holder = unrelated(KEY)
    waiter = beside(unrelated, KEY, wait=LONG)
    eventually(lambda: is_waited_for(cluster_store), "it waits")
    move = cluster_store.move(SLOT)
    port: Any = registry().store("default").backend.sync_port()
    found = keys_of(move)
    move.carry(*(found[key] for key in ahead.split()))
    claim = Claim(NAME, new_token(), LONG)
    for wait in (0, LONG):
        with pytest.raises(BackendUnavailable, match=f"slot {SLOT}"):
            drive(port.acquire(claim, wait))
    attempts: list[Callable[[], object]] = [
        lambda: drive(port.cancel_now(claim)),
        lambda: drive(port.revoke(NAME, 1)),
        lambda: drive(port.attach(claim, "x")),
        lambda: drive(port.extend([claim])),
        lambda: drive(port.release(claim)),
        lambda: drive(port.inspect([NAME])),
    ]
    for attempt in attempts:
        with suppress(BackendUnavailable):  # some can be answered without the key that has gone
            attempt()
    move.finish()
    holder.extend()
    drive(port.cancel_now(claim))
    holder.release()
    waiter.result(SOON).release()


def test_what_has_gone_before_its_slot_is_asked_for_there(cluster_store: Cluster, beside: Beside) -> None:
    """All keys of the lock are at the other end, and the slot is not yet: ASK."""
    holder = unrelated(KEY)
    waiter = beside(unrelated, KEY, wait=LONG)
    eventually(lambda: is_waited_for(cluster_store), "it waits")
    move = cluster_store.move(SLOT)
    move.carry(*move.left())
    before = now()
    holder.extend()
    assert now() - before < SOON
    assert move.target.ask("INFO", "commandstats")["cmdstat_asking"]["calls"] > 0
    move.finish()
    holder.release()
    waiter.result(SOON).release()


def test_a_waiter_that_follows_its_lock_ahead_of_the_slot_keeps_its_place(
    cluster_store: Cluster, beside: Beside
) -> None:
    """If it left the queue, there would be none: until the slot has moved nobody could release, or wait."""
    holder = unrelated(KEY)
    waiter = beside(unrelated, KEY, wait=LONG)
    eventually(lambda: is_waited_for(cluster_store), "it waits")
    move = cluster_store.move(SLOT)
    move.carry(*move.left())
    with pytest.raises(LockBusy):  # who learns where the lock is tells those who wait
        unrelated(KEY, wait=0)
    eventually(lambda: _heard(move), "it listens at the new node")
    holder.release()
    lease = waiter.result(SOON)
    move.finish()
    lease.release()


def test_a_free_lock_in_a_moving_slot_is_refused_in_bounded_time_and_leaves_nothing(cluster_store: Cluster) -> None:
    move = cluster_store.move(SLOT)
    begun = now()
    with pytest.raises(BackendUnavailable, match="moving"):
        lock(KEY, expire=LONG).acquire()
    assert now() - begun < SOON
    move.finish()
    with lock(KEY, expire=LONG):
        pass
    assert [key for key in move.target.ask("KEYS", "*") if "~held" not in key] == []


def test_a_renewal_does_not_follow_a_moving_slot_for_long(
    cluster_store: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of 0.3 s was lost beside it, though the node had extended it: its answer waited for the slot's."""
    monkeypatch.setattr(route, "FOLLOW", 60)
    moving, port = unrelated(KEY, expire=300), registry().store("default").backend.renewal_port()
    other = unrelated(cluster_store.name_at(cluster_store.serving(SLOT), "beside"), expire=300)
    move = cluster_store.move(SLOT)
    move.carry(keys_of(move)["index"])
    begun = now()
    half_moved, extended = drive(port.extend([scope_of(lease).holds[0].claim for lease in (moving, other)], 5.0))
    assert now() - begun < SOON
    assert isinstance(half_moved, BackendUnavailable)
    assert extended is None
    move.finish()
    for lease in (moving, other):
        lease.release()


@pytest.mark.parametrize("shape", ["moved", "many moved", "ahead of its slot"])
def test_a_renewal_does_not_wait_for_the_node_that_a_slot_moved_to(cluster: Cluster, shape: str) -> None:
    """That began to hang. A lease was lost whose renewal the node before had answered: its answer was not looked at."""
    configure({"default": {"LOCATION": cluster.url, "OPTIONS": {"socket_timeout": 20}}})
    port, source = registry().store("default").backend.renewal_port(), cluster.serving(SLOT)
    target = next(master for master in cluster.masters if master is not source)
    keys = [cluster.name_at(source, f"moving{n}:") for n in range(30 if shape == "many moved" else 1)]
    moving = [unrelated(key, expire=300) for key in keys]
    staying, there = (unrelated(cluster.name_at(node, "staying"), expire=300) for node in (source, target))
    claims = [scope_of(lease).holds[0].claim for lease in (*moving, staying)]
    assert drive(port.extend([*claims, scope_of(there).holds[0].claim], 5.0)) == [None] * (len(claims) + 1)
    moves = [cluster.move(key_slot(claim.name.encode()), target) for claim in claims[:-1]]
    for move in moves:
        if shape == "ahead of its slot":
            move.carry(*move.left())
        else:
            move.finish()
    target.pause()
    begun, deadline = now(), 12.0
    *unknown, extended = drive(port.extend(claims, deadline))
    assert now() - begun < deadline / 2
    assert extended is None
    assert all(isinstance(answer, BackendUnavailable) for answer in unknown)
    target.resume()
    eventually(lambda: drive(port.extend(claims, 5.0)) == [None] * len(claims), "all are renewed")
    for move in moves:
        move.finish()
    for lease in (*moving, staying, there):
        lease.release()


def test_a_slot_that_moves_to_and_fro_under_load_loses_no_update(cluster: Cluster, cluster_lab: Lab) -> None:
    crowd = cluster_lab.ready(*({"mode": mode, "rounds": 60, "section": 0.01} for mode in ("threads", "asyncio") * 2))
    for worker in crowd:
        worker.go()
    moves = 0
    while any(worker.times("wrote") < 60 for worker in crowd) and moves < 40:
        cluster.move(SLOT).finish()
        moves += 1
    assert [worker.join() for worker in crowd] == [0] * len(crowd)
    assert moves > 5
    assert cluster_lab.history.violations(counter=cluster_lab.counter) == []
    assert cluster_lab.counter == 4 * 60
