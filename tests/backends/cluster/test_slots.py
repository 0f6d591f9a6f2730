"""Slots: all keys of a lock are in one, each slot has an index of its own, and several locks may be anywhere."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from distlock_web import lock
from distlock_web.backends.redis.cluster.slots import SLOTS, SlotKeys, slot_of
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import Token, drive, new_token
from tests.support.callers import unrelated
from tests.support.stores.cluster import Cluster
from tests.support.waiting import LONG

KEYS = SlotKeys("disLock:")


def test_each_slot_has_an_index_that_lies_in_it() -> None:
    keys = [KEYS.index_in(slot) for slot in range(SLOTS)]
    assert [key_slot(key.encode()) for key in keys] == list(range(SLOTS))
    assert len(set(keys)) == SLOTS


@pytest.mark.parametrize("name", ["disLock:k", "disLock:a%7Bb%7D", "disLock:ünï", "disLock:" + "x" * 150])
def test_the_keys_of_a_lock_are_in_one_slot(cluster: Cluster, name: str) -> None:
    packed = KEYS.of(name, Token("0123456789abcdef")).packed
    keys = packed.decode().split("\r\n")[3::2]
    assert len(keys) == 4
    assert {cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key) for key in keys} == {slot_of(name)}


def test_a_lock_over_several_keys_holds_one_at_each_node(cluster_store: Cluster) -> None:
    keys = [cluster_store.name_at(master, "many") for master in cluster_store.masters]
    with lock(keys, expire=LONG) as lease:
        lease.extend()
        assert all(lock(key).try_acquire() is not None for key in keys), "entered again"
        port = registry().store("default").backend.sync_port()
        assert {line.name for line in drive(port.inspect())} == {f"disLock:{key}" for key in keys}
        for key in keys:
            busy = drive(port.acquire(Claim(f"disLock:{key}", new_token(), 1.0), 0))
            assert not isinstance(busy, Granted)
    for key in keys:
        unrelated(key).release()


@pytest.mark.usefixtures("cluster_store")
def test_many_leases_are_extended_together_each_by_its_own_right(cluster: Cluster) -> None:
    """One write to each node, also where it has forgotten the scripts; the answers in the order of the questions."""
    port = registry().store("default").backend.renewal_port()
    claims = [Claim(f"disLock:lease{number}", new_token(), LONG) for number in range(300)]
    for claim in claims:
        assert isinstance(drive(port.acquire(claim, 0)), Granted)
    assert len({cluster.master_of(claim.name).port for claim in claims[:30]}) == 3
    strangers = {number: claims[number]._replace(token=new_token()) for number in (0, 7, 150, 299)}
    asked = [strangers.get(number, claim) for number, claim in enumerate(claims)]
    for master in cluster.masters:
        master.ask("SCRIPT", "FLUSH")
    before = [master.ask("INFO", "stats")["total_net_input_bytes"] for master in cluster.masters]
    losses = drive(port.extend(asked))
    after = [master.ask("INFO", "stats")["total_net_input_bytes"] for master in cluster.masters]
    assert losses == ["taken" if number in strangers else None for number in range(300)]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 150_000, "each script was sent by its source"
    for claim in claims:
        assert drive(port.release(claim)) is None
