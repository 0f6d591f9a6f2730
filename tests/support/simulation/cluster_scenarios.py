"""A Redis Cluster of simulated nodes: slots that move, failovers, a node that refuses, one without slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from redis.crc import key_slot

from .network import Server
from .program import Program
from .redis_cluster import SLOTS, ClusterServer
from .redis_scenarios import TIMEOUT, TRACES, RedisNode, RedisScenario
from .scenario import EXPIRE, LONGEST, Errors
from .world import Machine, Process

MASTERS = 3


class ClusterScenario(RedisScenario):
    """Three masters and one replica, for which any of them may have to stand.

    In half of the seeds the nodes have one time. Only there nodes fail over, or lose their data: a lease goes to a
    replica with the moment of its end, and fences are given anew, by the clock on the wall. In the other half their
    clocks differ, and are set.
    """

    model = ClusterServer
    servers = MASTERS + 1

    def __init__(self, seed: int, programs: list[Program]) -> None:
        self.alike = seed % 2 == 0
        if self.alike:
            self.servers_drift = 0.0
        super().__init__(seed, programs)
        if self.alike:
            for node in self.nodes:
                node.machine.wall_ahead = node.right_clock = self.nodes[0].right_clock
        self.masters, self.replica = self.nodes[:MASTERS], self.nodes[MASTERS]
        self.of_replica = self.random.choice(self.masters)
        #: Who serves a slot, whoever knows it already.
        self.owner = [self.masters[slot * MASTERS // SLOTS] for slot in range(SLOTS)]
        for node in self.nodes:
            self._node_of(node).owners = [self._node_of(owner) for owner in self.owner]
        self.moving: set[int] = set()
        self._stand_by()
        self._replicate()
        machine = Machine(self.world, "stranger", self.drift)  # it has left the cluster, or not joined it yet
        stranger = ClusterServer(machine.wall, name="stranger")
        Server(self.network, machine, ("stranger", 6379), stranger.connect)

    def _node_of(self, node: RedisNode) -> ClusterServer:
        assert isinstance(node.model, ClusterServer)
        return node.model

    def settings(self, number: int) -> Mapping[str, Any]:
        seeds = [node.machine.name for node in self.random.sample(self.nodes, 2)]
        if self.random.random() < 0.3:
            seeds.insert(0, "stranger")
        options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        where = ",".join(f"{name}:6379" for name in seeds)
        return {"default": {"LOCATION": f"redis+cluster://{where}/", "OPTIONS": options}}

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        every = super().misfortunes()
        if len(every) == 1:  # nothing else is at fault
            return every
        return [*every, (0.7, self.move_a_slot), (3.0, self.fail_over)]

    def slots(self) -> list[int]:
        """Of the locks."""
        return [key_slot(f"disLock:{name}".encode()) for name in self.storm.locks]

    # Slots that move ----------------------------------------------------------------------------------------------

    def move_a_slot(self) -> None:
        """As ``redis-cli --cluster reshard`` does it, key by key; how long it takes, the seed decides."""
        slot = self.random.choice(self.slots())
        source = self.owner[slot]
        target = self.random.choice([node for node in self.masters if node is not source])
        if slot in self.moving or not (self._is_well(source) and self._is_well(target)):
            return
        self.moving.add(slot)
        healed = self.histories.fault(f"slot {slot} moves")
        self.healed_at = max(self.healed_at, self.world.time + TRACES)
        self._node_of(source).begin_move(slot, self._node_of(target))
        self.world.after(self._step(), self._move, slot, source, target, healed)

    def _step(self) -> float:
        return self.random.choice((0.001, 0.001, 0.01, 0.3)) * EXPIRE

    def _is_well(self, node: RedisNode) -> bool:
        return node.server.up and node.server.stopped_until <= self.world.time

    def _move(self, slot: int, source: RedisNode, target: RedisNode, healed: Callable[[], None]) -> None:
        """The next key; or, if there is none, the slot."""
        self.healed_at = max(self.healed_at, self.world.time + 1.0)
        if self._is_well(source) and self._is_well(target):
            at, to = self._node_of(source), self._node_of(target)
            if keys := at.keys_in(slot):
                at.migrate(self.random.choice(keys), to)
            else:
                self._moved(slot, source, target, healed)
                return
        self.world.after(self._step(), self._move, slot, source, target, healed)

    def _moved(self, slot: int, source: RedisNode, target: RedisNode, healed: Callable[[], None]) -> None:
        """The target knows it first, then the source, and at last the others."""
        self.owner[slot] = target
        self.moving.discard(slot)
        to = self._node_of(target)
        to.learn(slot, to)
        later = self.random.uniform(0, 0.01)
        self.world.after(later, self._node_of(source).learn, slot, to)
        for node in self.nodes:
            if node not in (source, target):
                self.world.after(later + self.random.uniform(0, 0.3), self._learn_later, node, slot)
        self.healed_at = max(self.healed_at, self.world.time + 0.3 + TRACES)
        self.world.after(0.3 + TRACES, healed)

    def _learn_later(self, node: RedisNode, slot: int) -> None:
        if slot not in self.moving:  # else it hears of it at the next end
            self._node_of(node).learn(slot, self._node_of(self.owner[slot]))

    # A replica ----------------------------------------------------------------------------------------------------

    def _stand_by(self) -> None:
        self.replica.model.role, self.of_replica.model.role = "slave", "master"
        for node in self.nodes:
            node.model.replicas = []
        self.of_replica.model.replicas = [self.replica.model]

    def _replicate(self) -> None:
        """From time to time the replica has all."""
        if self.of_replica.server.up and self.replica.server.up:
            self.of_replica.model.copy_to(self.replica.model)
        self.world.after(self.random.choice((0.001, 0.01, 0.1)), self._replicate)

    def fail_over(self) -> None:
        """By hand, without a loss; or because the master has gone, with its last writes."""
        former, successor = self.of_replica, self.replica
        if not self.alike or self.moving or not self._is_well(successor):
            return
        seconds, lossless = self._a_while(), self.random.random() < 0.5
        self._at_fault_for("failover", seconds + TRACES + 0.3)
        if lossless:
            former.model.copy_to(successor.model)
        else:  # README excepts it: the replica may not know of the lock
            self.forgotten(former)
        slots = [slot for slot, owner in enumerate(self.owner) if owner is former]
        for slot in slots:
            self.owner[slot] = successor
        self.masters = [successor if node is former else node for node in self.masters]
        self.of_replica, self.replica = successor, former
        self._stand_by()
        for node in self.nodes:
            if node in (former, successor):
                self._learn_all(node, slots)
            else:
                self.world.after(self.random.uniform(0, 0.3), self._learn_all, node, slots)
        if self.random.random() < 0.5:
            former.restart(seconds)

    def _learn_all(self, node: RedisNode, slots: list[int]) -> None:
        for slot in slots:
            self._learn_later(node, slot)

    # Data that is lost --------------------------------------------------------------------------------------------

    def restart_a_server(self) -> None:
        node, seconds = self._node(), self._a_while()
        if node.server.up:
            self._at_fault_for(f"{node.machine.name} restarted", seconds + TRACES)
            node.restart(seconds, empty=self.alike and self.random.random() < 0.3)

    def forgotten(self, node: RedisNode) -> None:
        if node is self.replica:
            return
        fences = range(int(node.machine.wall() * 1e6))
        for name, history in self.histories.items():
            slot = key_slot(f"disLock:{name}".encode())
            if self.owner[slot] is node or slot in self.moving:
                history.forget(self.world.moment(), fences)

    def limits(self) -> dict[str, Any]:
        return {"bound": LONGEST + 0.5, "honest": LONGEST + 1.0}


#: Seconds that a request takes at most where its node is well: on a new connection, and after another node was asked.
SOON = 1.0


class Keeper:
    """Takes a lock, keeps it by renewals, gives it back; and again. Nobody else wants that one."""

    def __init__(self, actor: str, harness: Any, random: Random, scenario: ClusterLeases, process: Process) -> None:
        self.actor = actor
        self.over = False
        self._harness = harness
        self._random = random
        self._scenario = scenario
        self._package = process.program._modules["distlock_web"]

    def killed(self, *, stopped: bool = False) -> None:
        """Nothing of it is looked at any more."""

    async def rounds(self) -> None:
        random, package, clock = self._random, self._package, self._scenario.world.moment
        while not self.over:
            await self._harness.sleep(random.uniform(0, EXPIRE / 3))
            name = random.choice(self._scenario.names)
            self._since, self._slow = clock(), 0.0
            try:
                await self._keep(name)
            except package.LockBusy:
                continue
            except package.DistLockError as error:
                self._say(name, repr(error))
            if self._slow > SOON:
                self._say(name, f"a request took {self._slow:.3f} s")

    async def _keep(self, name: str) -> None:
        random, clock = self._random, self._scenario.world.moment
        expire, asked = EXPIRE * random.uniform(0.4, 2.0), clock()
        async with self._harness.inside(self._package.lock(name, expire=expire, renew=True)) as lease:
            self._scenario.sections_kept += 1
            self._slow = clock() - asked
            for _ in range(random.choice((1, 5, 10, 20))):
                await self._harness.sleep(random.uniform(0, EXPIRE / 3))
                lease.raise_if_lost()
                if self.over:
                    break
            asked = clock()
        self._slow = max(self._slow, clock() - asked)

    def _say(self, name: str, what: str) -> None:
        if not self._scenario.is_excused(name, self._since):
            self._scenario.wrong.append(f"{name}: {self.actor} at {self._scenario.world.time:.6f}: {what}")


class ClusterLeases(ClusterScenario):
    """Leases are renewed at all nodes, while one node, or one slot, is in trouble: it concerns nobody else."""

    def __init__(self, seed: int, programs: list[Program]) -> None:
        super().__init__(seed, programs)
        self.forks = 0.0
        self.names = [f"kept:{number}" for number in range(12)]
        self.wrong: list[str] = []
        self.sections_kept = 0
        self.victim = self.random.choice(self.masters)
        #: Which slots are concerned, from when to when.
        self._troubles: list[tuple[Callable[[int], bool], float, float]] = []

    def caller(self, name: str, harness: Any, process: Process, aside: Callable[[], None]) -> Any:
        return Keeper(name, harness, Random(self.random.random()), self, process)

    def slots(self) -> list[int]:
        return [key_slot(f"disLock:{name}".encode()) for name in self.names]

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        if self.random.random() < 0.5:
            return [(0.5, self.move_a_slot)]
        return [(1.0, self.random.choice((self.refuse, self.stop_it, self.restart_it, self.cut_it_off)))]

    def is_excused(self, name: str, since: float) -> bool:
        slot = key_slot(f"disLock:{name}".encode())
        return any(concerns(slot) and until > since for concerns, _, until in self._troubles) or slot in self.moving

    def _trouble(self, seconds: float) -> None:
        """At the victim."""
        self._at_fault_for(f"{self.victim.machine.name} in trouble", seconds + TRACES)
        until = self.world.time + seconds + TRACES + LONGEST
        self._troubles.append((lambda slot: self.owner[slot] is self.victim, self.world.time, until))

    def refuse(self) -> None:
        """Its password was changed, and an operator ends the connections of those that had signed in before."""
        seconds = self._a_while()
        self._trouble(seconds)
        self._node_of(self.victim).refuses = True
        for link in list(self.victim.server.links):
            link.reset()
        self.world.after(seconds, self._admit)

    def _admit(self) -> None:
        self._node_of(self.victim).refuses = False

    def stop_it(self) -> None:
        seconds = self._a_while()
        self._trouble(seconds)
        self.victim.server.stop(seconds)

    def restart_it(self) -> None:
        if self.victim.server.up:
            seconds = self._a_while()
            self._trouble(seconds)
            self.victim.restart(seconds)

    def cut_it_off(self) -> None:
        seconds = self._a_while()
        self._trouble(seconds)
        for process in self.alive():
            self.network.cut(process.machine, self.victim.server, seconds, answers=self.random.random() < 0.5)

    def _step(self) -> float:
        return self.random.choice((0.01, 0.3, 1.0)) * EXPIRE  # its keys are at both ends for longer than a lease

    def _moved(self, slot: int, source: RedisNode, target: RedisNode, healed: Callable[[], None]) -> None:
        super()._moved(slot, source, target, healed)
        moment = self.world.time
        self._troubles.append((lambda other: other == slot, moment, moment + 0.3 + TRACES + LONGEST))

    def sections(self) -> int:
        return self.sections_kept

    def violations(self, errors: Errors) -> list[str]:
        return super().violations(errors) + self.wrong
