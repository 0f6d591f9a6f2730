"""A node that dies, or hangs: its locks go on with its replica, and those of the other nodes notice nothing."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from distlock_web import BackendUnavailable, ConfigurationError, LeaseLost, LockBusy, configure, held_locks, lock
from distlock_web.backends.redis.cluster.redirects import NodeAddress
from distlock_web.backends.redis.cluster.route import Route
from distlock_web.core.backend import Claim, Granted
from distlock_web.core.errors import NotSent
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, Runtime, drive, new_token, now
from distlock_web.locks.lease import scope_of
from distlock_web.testing.harness import Harness
from tests.support.callers import Beside, unrelated
from tests.support.lab import Lab
from tests.support.modes import in_both_modes, modes
from tests.support.redis_lock import KEY, NAME
from tests.support.stores.cluster import QUICK, Cluster, ClusterNode
from tests.support.waiting import LONG, SLACK, SOON, eventually

pytestmark = pytest.mark.slow


def promoted(cluster: Cluster, dead: ClusterNode, name: str = NAME) -> bool:
    return cluster.master_of(name) is not dead


def fail_over(cluster: Cluster, name: str = NAME) -> ClusterNode:
    """Kill the master of this lock when its replica has all of it; return when that has taken over."""
    master = cluster.master_of(name)
    assert master.ask("WAIT", 1, 20_000) == 1
    cluster.timeout(QUICK)
    master.kill()
    eventually(lambda: promoted(cluster, master, name), "the replica takes over")
    eventually(lambda: all("cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in cluster.running), "it serves")
    return master


@modes
def test_a_replica_takes_over_with_the_lock_and_its_queue(cluster: Cluster, cluster_lab: Lab, mode: str) -> None:
    expire = 8.0
    holder, waiter = cluster_lab.ready(
        {"hold": True, "expire": expire, "renew": True, "mode": mode}, {"expire": expire, "mode": mode}
    )
    holder.go()
    holder.saw("acquired")
    waiter.go()
    waiter.saw("joined")
    fail_over(cluster)
    holder.go()
    released, begun = holder.saw("released"), waiter.saw("acquired")
    assert [holder.join(), waiter.join()] == [0, 0]
    assert begun.at - released.at < expire + SLACK
    assert cluster_lab.history.violations(counter=cluster_lab.counter) == []
    assert holder.times("lost") == 0


def test_the_first_request_after_a_failover_finds_the_new_master(cluster_store: Cluster) -> None:
    """Nobody has to see an error for it: the connections are broken, so the others are asked who has taken over."""
    with lock(KEY, expire=LONG):
        pass
    fail_over(cluster_store)
    with lock(KEY, expire=LONG) as lease:
        lease.extend()


def test_a_node_that_hangs_refuses_its_own_locks_only(cluster_store: Cluster) -> None:
    hanging, *others = cluster_store.masters
    theirs, fine = cluster_store.name_at(hanging), [cluster_store.name_at(other) for other in others]
    for key in (theirs, *fine):
        unrelated(key).release()
    hanging.pause()
    begun = now()
    with pytest.raises(BackendUnavailable, match=str(hanging.port)):
        lock(theirs).acquire()
    assert now() - begun < SOON
    begun = now()
    for _ in range(20):
        for key in fine:
            with lock(key):
                pass
        with pytest.raises(BackendUnavailable, match="does not answer"):
            lock(theirs).acquire()
    assert now() - begun < SOON, "a time-out each would be a minute"
    with pytest.raises(BackendUnavailable, match=str(hanging.port)):
        drive(registry().store("default").backend.sync_port().inspect())
    hanging.resume()
    eventually(lambda: _works(theirs), "it is known as soon as it answers")


def _works(key: str) -> bool:
    try:
        with lock(key):
            return True
    except (BackendUnavailable, LockBusy):
        return False


@pytest.mark.timing
def test_leases_at_other_nodes_are_renewed_while_one_hangs(cluster_store: Cluster, beside: Beside) -> None:
    """There is one watchdog for all of them: it does not wait, again and again, for a node that is known to hang."""
    hanging, *others = cluster_store.masters
    theirs = unrelated(cluster_store.name_at(hanging), expire=8.0, renew=True)
    short = [unrelated(cluster_store.name_at(other), expire=3.0, renew=True) for other in others]
    time.sleep(0.2)
    hanging.pause()
    eventually(lambda: theirs.state == "unsure", "its renewal fails")
    port, moments = registry().store("default").backend.renewal_port(), []
    for _ in range(5):
        begun = now()
        failure, *extended = drive(port.extend([scope_of(lease).holds[0].claim for lease in (theirs, *short)], 5.0))
        moments.append(now() - begun)
        assert isinstance(failure, BackendUnavailable)
        assert extended == [None] * len(short)
    assert sorted(moments)[2] < 0.5, "a time-out each would be a second"
    time.sleep(3.0)  # a whole lease
    assert [lease.state for lease in short] == ["held"] * len(short)
    hanging.resume()
    eventually(lambda: theirs.state == "held", "renewed again")
    for lease in (theirs, *short):
        lease.release()


@in_both_modes
async def test_a_node_that_begins_to_hang_ends_no_lease_at_another(harness: Harness, cluster_store: Cluster) -> None:
    """Nothing says yet that it hangs. One thread renewed at all nodes, and so all waited for its answer, too long."""
    configure({"default": {"LOCATION": cluster_store.url, "OPTIONS": {"socket_timeout": 20}}})
    harness.store = registry().store("default")
    hanging, *others = cluster_store.masters
    keys = [cluster_store.name_at(node) for node in (*others, hanging)]  # theirs ends last: it was waited for so long
    *fine, theirs = [await harness.acquire(lock(key, expire=5.0, renew=True)) for key in keys]
    await harness.sleep(0.2)
    hanging.pause()
    while theirs.state != "lost":
        await harness.sleep(0.02)
    assert [lease.state for lease in fine] == ["held"] * len(fine)
    hanging.resume()
    for lease in fine:
        await harness.release(lease)
    with pytest.raises(LeaseLost):
        await harness.release(theirs)


def test_leases_at_other_nodes_are_renewed_while_one_refuses(cluster_store: Cluster) -> None:
    """Its password was changed, or its ACL. That is no outage, and ended every renewal of the process."""
    refusing, *others = cluster_store.masters
    theirs = unrelated(cluster_store.name_at(refusing), expire=300, renew=True)
    fine = [unrelated(cluster_store.name_at(other), expire=300, renew=True) for other in others]
    port, leases = registry().store("default").backend.renewal_port(), (theirs, *fine)
    claims = [scope_of(lease).holds[0].claim for lease in leases]
    with refusing.client as operator:  # whose connection goes on
        operator.config_set("requirepass", "new")
        try:
            operator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

            def refuses() -> bool:
                refusal, *extended = drive(port.extend(claims, 5.0))
                assert extended == [None] * len(fine)
                return isinstance(refusal, ConfigurationError) and "password" in str(refusal)

            eventually(refuses, "its connections have ended")
            with pytest.raises(ConfigurationError, match="password"):
                drive(port.extend(claims[:1], 5.0))
            with pytest.raises(ConfigurationError, match="password"):  # and not: those of the others are all
                held_locks()
        finally:
            operator.config_set("requirepass", "")
    assert drive(port.extend(claims, 5.0)) == [None] * len(claims)
    for lease in leases:
        lease.release()


def test_what_a_dead_node_was_to_undo_is_undone_at_its_replica(cluster_store: Cluster) -> None:
    """The answer to an acquisition was lost with the master, and its replica has the lock, for a minute."""
    with lock(KEY):
        pass
    port: Any = registry().store("default").backend.sync_port()
    claim = Claim(NAME, new_token(), LONG)
    master = cluster_store.master_of(NAME)
    drive(port.acquire(claim, 0))
    assert master.ask("WAIT", 1, 20_000) == 1
    master.pause()
    drive(port.cancel(claim))  # put off: it does not answer
    cluster_store.timeout(QUICK, master)
    eventually(lambda: promoted(cluster_store, master), "the replica takes over")
    eventually(lambda: _works(KEY), "it was cancelled", SOON)


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "not sent"])
def test_a_node_that_was_not_asked_does_not_speak_for_the_one_before(sent: bool) -> None:
    """The answer of that was lost, and its replica has the lock: nobody cancelled it, for nothing was done there."""
    former, refused = (BackendUnavailable if sent else NotSent)("No answer."), NotSent("This request was not sent.")
    nodes = [SimpleNamespace(at=("node", 1), error=former), SimpleNamespace(at=("node", 2), error=refused)]
    owners = iter(nodes)

    class Moving:
        waiting: ClassVar[dict[str, Any]] = {}

        async def owner(self, slot: int, runtime: Runtime) -> Any:
            return next(owners)

        async def replaced(self, slot: int, failed: Any, runtime: Runtime) -> bool:
            return failed is nodes[0]

    async def acquire(port: Any) -> None:
        raise port.node.error

    def port_of(node: Any) -> Any:
        return SimpleNamespace(node=node, leave=lambda token: None)

    route = Route(cast("Any", Moving()), THREADS, port_of, 0, Claim(NAME, new_token(), LONG))
    with pytest.raises(BackendUnavailable, match="not sent") as caught:
        drive(route.send(acquire))
    assert isinstance(caught.value, NotSent) is not sent


@pytest.mark.parametrize("tries", [1, 2])
def test_who_was_not_answered_says_so_to_the_node_that_takes_over(monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    """In the same request or the second. It may stand in the queue there, and was taken for one that does not."""
    backend: Any = (
        configure({"default": {"LOCATION": "redis+cluster://127.0.0.1:1,127.0.0.1:2/"}}).store("default").backend
    )
    port, routes = backend.sync_port(), backend._routes
    nodes = [routes.node(NodeAddress("127.0.0.1", number)) for number in (1, 2)]
    said = list[tuple[int, int]]()

    class Exchange:
        def __init__(self, at: Any) -> None:
            self.number = [node.server for node in nodes].index(at)

        async def run(self, _: Any, keys: Any, args: Any, timeout: float | None = None) -> int:
            said.append((self.number, args[4]))
            if self.number == 0:
                raise BackendUnavailable("No answer.")
            return 7

    async def owner(slot: int, runtime: Runtime) -> Any:
        return nodes[len(said)]

    async def replaced(slot: int, failed: Any, runtime: Runtime) -> bool:
        return tries == 1

    monkeypatch.setattr(port, "_exchange_of", Exchange)
    monkeypatch.setattr(routes, "owner", owner)
    monkeypatch.setattr(routes, "replaced", replaced)
    claim = Claim(NAME, new_token(), LONG)
    if tries == 2:
        with pytest.raises(BackendUnavailable):
            drive(port.acquire(claim, 0))
    assert isinstance(drive(port.acquire(claim, 0)), Granted)
    assert said == [(0, 0), (1, 1)]


def test_of_a_lock_in_a_slot_that_no_node_serves_nothing_is_remembered() -> None:
    """Nothing is put off for it: nobody knows where. Its token was kept for as long as the process lived."""
    settings = {"LOCATION": "redis+cluster://127.0.0.1:1,127.0.0.1:2/"}
    routes = cast("Any", configure({"default": settings}).store("default").backend)._routes
    claim = Claim(NAME, new_token(), LONG)
    routes.ambiguous.add(claim.token)
    routes.postpone(claim)
    assert not routes.ambiguous


def test_min_replicas_counts_those_of_the_locks_own_node(cluster: Cluster) -> None:
    configure({"default": {"LOCATION": cluster.url, "OPTIONS": {"min_replicas": 1}}})
    keys = [cluster.name_at(master) for master in cluster.masters]
    with lock(keys, expire=LONG) as lease:
        lease.extend()
    alone, *_ = cluster.masters
    cluster.replica_of(alone).kill()
    with pytest.raises(BackendUnavailable, match="0 of the 1 replicas"):
        lock(keys[0]).acquire()
    with lock(keys[1:]):
        pass


def test_a_cluster_that_hangs_as_a_whole_costs_the_first_request_its_time_out_and_no_other(
    cluster_store: Cluster,
) -> None:
    with lock(KEY):
        pass
    for node in cluster_store.nodes:
        node.pause()
    with pytest.raises(BackendUnavailable):
        lock(KEY).acquire()
    begun = now()
    for _ in range(20):
        with pytest.raises(BackendUnavailable):
            lock(KEY).acquire()
    assert now() - begun < 10, "a time-out each would be a minute"
    for node in cluster_store.nodes:
        node.resume()
    eventually(lambda: _works(KEY), "it is known as soon as it answers")


def test_a_cluster_that_hangs_from_the_beginning_refuses_as_well(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.pause()
    configure({"default": {"LOCATION": cluster.url}})
    for _ in range(2):
        begun = now()
        with pytest.raises(BackendUnavailable):
            lock(KEY).acquire()
        assert now() - begun < SOON
    for node in cluster.nodes:
        node.resume()
    eventually(lambda: _works(KEY), "it is known as soon as it answers")
