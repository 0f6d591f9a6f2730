"""What cannot be right is said at once, each by its own words, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from distlock_web import BackendUnavailable, ConfigurationError, DistLockError, configure, held_locks, lock
from distlock_web.core.runtime import now
from distlock_web.testing.servers import free_port
from tests.support.redis_lock import documented_rules
from tests.support.stores.cluster import Cluster, ClusterNode
from tests.support.waiting import SOON


def refused(settings: dict[str, Any]) -> DistLockError:
    """What is said to the first who wants a lock, in either mode."""
    configure({"default": settings})
    begun = now()
    with pytest.raises(DistLockError) as first:
        lock("k").acquire()

    async def as_task() -> None:
        await lock("k").aacquire()

    with pytest.raises(type(first.value)):
        asyncio.run(as_task())
    assert now() - begun < SOON
    return first.value


def test_a_server_that_is_no_cluster(redis_url: str) -> None:
    error = refused({"LOCATION": redis_url.replace("redis://", "redis+cluster://")})
    assert isinstance(error, ConfigurationError)
    assert "single server" in str(error)


def test_a_cluster_where_a_server_was_named(cluster: Cluster) -> None:
    master, *_ = cluster.masters
    error = refused({"LOCATION": f"redis://127.0.0.1:{master.port}/0"})
    assert isinstance(error, ConfigurationError)
    assert "redis+cluster://" in str(error)


def test_nobody_at_the_address() -> None:
    ports = free_port(), free_port()
    error = refused({"LOCATION": f"redis+cluster://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/"})
    assert isinstance(error, BackendUnavailable)
    assert str(ports[1]) in str(error)


def test_a_node_that_hangs_and_one_that_is_gone_do_not_matter_where_another_answers(cluster: Cluster) -> None:
    hanging, *others = [node for node in cluster.nodes if node not in cluster.masters]
    ports = free_port(), hanging.port, others[0].port
    hanging.pause()
    configure({"default": {"LOCATION": "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)}})
    with lock("k"):
        pass


def test_slots_that_nobody_serves() -> None:
    with ClusterNode() as lonely:
        error = refused({"LOCATION": f"redis+cluster://127.0.0.1:{lonely.port}/"})
        assert isinstance(error, BackendUnavailable)
        assert "serves" in str(error)
        with pytest.raises(BackendUnavailable, match="serves"):  # and not: nothing is held
            held_locks()


def test_a_node_without_slots_hides_no_other(cluster: Cluster) -> None:
    """It was taken out of the cluster and goes on, or has come back without its file, and stands first."""
    with ClusterNode() as stranger:
        configure({"default": {"LOCATION": f"redis+cluster://127.0.0.1:{stranger.port},{cluster.url.split('//')[1]}"}})
        with lock("k"):
            assert [row.lock.name for row in held_locks()] == ["disLock:k"]


@pytest.mark.parametrize("password", ["", "wrong@"])
def test_a_password_that_is_wrong_or_missing(password: str) -> None:
    with ClusterNode("--requirepass", "secret") as node:
        error = refused({"LOCATION": f"redis+cluster://{password and ':'}{password}127.0.0.1:{node.port}/"})
    assert isinstance(error, ConfigurationError)
    assert "password" in str(error)


def test_the_rights_that_locks_need_are_named_and_suffice(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "locks", "on", ">secret", *documented_rules())
    settings = {"LOCATION": f"redis+cluster://locks:secret@127.0.0.1:{cluster.masters[0].port}/"}
    try:
        error = refused(settings)
        assert isinstance(error, ConfigurationError)
        assert "+cluster|slots +cluster|myid" in str(error)
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", "locks", "+cluster|slots", "+cluster|myid")
        configure({"default": settings})
        with lock(["a", "b", "c"], wait=1, expire=5):
            pass
    finally:
        for node in cluster.nodes:
            node.ask("ACL", "DELUSER", "locks")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LOCATION": "redis+cluster://h1,h2/3"}, "no numbered databases"),
        ({"LOCATION": "redis+cluster:///"}, "names no node"),
        ({"LOCATION": "redis+cluster://h1:port/"}, "LOCATION"),
        ({"BACKEND": "redis-cluster", "LOCATION": "unix:///tmp/redis.sock"}, "LOCATION"),
        ({"LOCATION": "redis+cluster://h1/", "OPTIONS": {"host": "h2"}}, "'host'"),
        ({"LOCATION": "redis+cluster://h1/", "OPTIONS": {"socket_timeuot": 2}}, "socket_timeout"),
        ({"LOCATION": "redis+cluster://h1/", "OPTIONS": {"sentinel_kwargs": {}}}, "does not exist. It may be: "),
        ({"LOCATION": "redis+cluster://h1/", "OPTIONS": {"socket_timeout": -1}}, "socket_timeout"),
    ],
)
def test_settings_that_cannot_be_right(settings: dict[str, Any], said: str) -> None:
    configure({"default": settings})
    with pytest.raises(ConfigurationError, match=said):
        lock("k").acquire()


def test_a_replica_that_is_asked_for_leads_to_its_master(cluster: Cluster) -> None:
    (replica, *_) = [node for node in cluster.nodes if node not in cluster.masters]
    configure({"default": {"BACKEND": "redis-cluster", "LOCATION": f"redis://127.0.0.1:{replica.port}"}})
    with lock(["a", "b", "c"]):
        pass
