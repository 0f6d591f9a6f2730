"""A Redis Cluster of our own: three masters and a replica of each, from redis-server itself."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any, Self

import pytest
import redis
from redis.crc import key_slot

from distlock_web.testing.servers import RedisServer, free_port
from tests.support.requirements import require_redis
from tests.support.waiting import eventually

SLOTS = 16384
MASTERS = 3
#: Milliseconds of silence after which a node counts as failed: while a cluster is made, and where a test wants that.
QUICK = 1000
#: The same on a busy machine, where none may fail by itself.
PATIENT = 30_000


class ClusterNode(RedisServer):
    """One node. Its bus has the port 10,000 above its own: both lie below the ports that a system gives to clients."""

    name = "redis-cluster"

    def __init__(self, *args: str) -> None:
        super().__init__("--cluster-enabled", "yes", "--cluster-node-timeout", str(QUICK), *args)
        # A replica that has only just lost its master is young enough to take over, however busy the machine was.
        self.args += ("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")

    def start(self) -> None:
        if not self.port:
            self.port = _port_with_bus()
        super().start()

    frozen = False

    def pause(self) -> None:
        self.frozen = True
        super().pause()

    def resume(self) -> None:
        super().resume()
        self.frozen = False

    @property
    def client(self) -> Any:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=20)

    def ask(self, *words: object) -> Any:
        with self.client as client:
            return client.execute_command(*words)

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))


def _port_with_bus() -> int:
    while True:
        port = free_port()
        if port < 22_000:
            with socket.socket() as bus:
                try:
                    bus.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
                return port


class Cluster:
    """Three masters, and a replica of each if there are more nodes; a test may have made that the master."""

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.nodes = nodes
        self._make()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2]) + "/"

    def _make(self) -> None:
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        for number, master in enumerate(masters):
            first, last = (SLOTS * edge // MASTERS for edge in (number, number + 1))
            master.ask("CLUSTER", "ADDSLOTS", *range(first, last))
        eventually(lambda: all(_known(node) == len(self.nodes) for node in self.nodes), "the nodes know each other")
        for master, replica in zip(masters, replicas, strict=False):
            replica.ask("CLUSTER", "REPLICATE", master.id)
        self.until_whole()
        self.timeout(PATIENT)

    def timeout(self, milliseconds: int, *but: ClusterNode) -> None:
        """From now on a node counts as failed after so much silence. ``but``: those that do not answer."""
        for node in self.running:
            if node not in but:
                node.ask("CONFIG", "SET", "cluster-node-timeout", milliseconds)

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node._process is not None]

    @property
    def masters(self) -> list[ClusterNode]:
        return [node for node in self.running if node.ask("ROLE")[0] == "master"]

    def until_whole(self) -> None:
        """Return when every node sees every slot served, and every replica is in step."""
        try:
            eventually(self._is_whole, "the cluster is whole")
        except TimeoutError as error:
            for node in self.running:
                error.add_note(node.ask("CLUSTER", "NODES") + str(node.ask("ROLE")))
            raise

    def _is_whole(self) -> bool:
        views = [node.ask("CLUSTER", "NODES") for node in self.running]
        roles = [node.ask("ROLE") for node in self.running]
        return (
            all("cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in self.running)
            and not any("fail" in view or "handshake" in view for view in views)
            and len({_owners(view) for view in views}) == 1
            and sum(role[0] == "master" for role in roles) == MASTERS
            and all(role[0] == "master" or role[3] == "connected" for role in roles)
        )

    def master_of(self, name: str) -> ClusterNode:
        """The node that serves this key."""
        return self.serving(key_slot(name.encode()))

    def serving(self, slot: int) -> ClusterNode:
        for node in sorted(self.running, key=lambda node: node.frozen):
            for first, last, (_, port, *_), *_ in node.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(node for node in self.nodes if node.port == port)
        raise LookupError(f"nobody serves slot {slot}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        return next(node for node in self.running if node.ask("ROLE")[:3:2] == ["slave", master.port])

    def name_at(self, master: ClusterNode, word: str = "lock") -> str:
        """A key for a lock that this master serves, with the prefix of locks in front."""
        return next(key for key in (f"{word}{n}" for n in count()) if self.master_of(f"disLock:{key}") is master)

    def move(self, slot: int, target: ClusterNode | None = None) -> Move:
        """Begin to move this slot from the master that serves it to another one: to this, if it is given."""
        source = self.serving(slot)
        return Move(self, slot, source, target or next(master for master in self.masters if master is not source))

    def heal(self) -> None:
        """Every node runs, nothing is in the cluster."""
        for node in self.nodes:
            if node._process is None:
                node.start()
            node.resume()
            for slot in re.findall(r"\[(\d+)-", node.ask("CLUSTER", "NODES")):
                node.ask("CLUSTER", "SETSLOT", slot, "STABLE")
        self.timeout(QUICK)
        self.until_whole()
        for master in self.masters:
            master.ask("FLUSHALL")
            master.ask("SCRIPT", "FLUSH")
        self.timeout(PATIENT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()


class Move:
    """A slot on its way, as ``redis-cli --cluster reshard`` moves it: key by key, and refused by no key in between."""

    def __init__(self, cluster: Cluster, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        self._cluster = cluster
        self._slot = slot
        self.source = source
        self.target = target
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def left(self) -> list[str]:
        """Those that have not moved yet."""
        return list(self.source.ask("CLUSTER", "GETKEYSINSLOT", self._slot, 100))

    def carry(self, *keys: str) -> None:
        """Move these keys now."""
        for key in keys:
            assert self.source.ask("MIGRATE", "127.0.0.1", self.target.port, key, 0, 20_000) in ("OK", "NOKEY")

    def finish(self) -> None:
        """Move what is left; from then on the slot is the other's."""
        while keys := self.left():
            self.carry(*keys)
        owner = self.target.id
        for node in (self.target, self.source, *self._cluster.masters):
            node.ask("CLUSTER", "SETSLOT", self._slot, "NODE", owner)


def _known(node: ClusterNode) -> int:
    view = node.ask("CLUSTER", "NODES")
    return 0 if "handshake" in view else len(view.splitlines())


def _owners(view: str) -> frozenset[tuple[str, ...]]:
    """Who serves what, of CLUSTER NODES."""
    return frozenset((line.split()[0], *line.split()[8:]) for line in view.splitlines() if "master" in line)


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    require_redis()
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        nodes = [ClusterNode() for _ in range(2 * MASTERS)]
        list(pool.map(stack.enter_context, nodes))
        yield Cluster(nodes)


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster, empty. A test may kill, freeze and reshard what it likes: it is healed afterwards."""
    _empty(whole_cluster)
    with whole_cluster as running:
        yield running


@pytest.fixture
def cluster_settings(whole_cluster: Cluster) -> dict[str, Any]:
    """One entry of DISTLOCK: the session's cluster, empty."""
    _empty(whole_cluster)
    return {"LOCATION": whole_cluster.url}


def _empty(cluster: Cluster) -> None:
    for master in cluster.masters:
        master.ask("FLUSHALL")
