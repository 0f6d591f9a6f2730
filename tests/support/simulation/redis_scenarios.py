"""The Redis store with its true scripts, on simulated servers behind a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from . import system
from .network import QUIET, Link, Network, Server
from .program import DRIVER, Program
from .redis_server import Connection, RedisServer
from .scenario import EXPIRE, LONGEST, Nesting, Scenario, Sharing
from .world import Machine, Process

for name in DRIVER:
    system.put_into(import_module(name))
# It looks for the version of redis-py in the files of the installed package, for each connection anew.
import_module("redis.utils").get_lib_version = lambda: "simulated"  # type: ignore[attr-defined]

#: Seconds that an answer may take, and that it takes at most on a quiet day.
TIMEOUT = 0.25
#: Seconds after a fault for which its traces last: a connection is opened again, a silent server is asked again.
TRACES = 2 * TIMEOUT + 0.3


class RedisNode:
    """One server, and its machine."""

    def __init__(self, scenario: RedisScenario, name: str, drift: float) -> None:
        self._scenario = scenario
        self.machine = Machine(scenario.world, name, drift)
        self.model = scenario.model(self.machine.wall, name=name)
        self.model.run_id = f"{name:0>40}"
        self.right_clock = self.machine.wall_ahead
        self.began_anew = 0.0  #: when it lost its data, by its clock
        self.server = Server(scenario.network, self.machine, (name, 6379), self.model.connect)

    def restart(self, seconds: float, *, empty: bool = False) -> None:
        """It ends, and is there again after so many seconds; ``empty``: without its data."""
        self.server.go_down()
        self.model.restart()
        if empty:
            self.model.data = type(self.model.data)()
            self._scenario.forgotten(self)
        self._scenario.world.after(seconds, self.server.come_up)


class RedisScenario(Scenario):
    """One server."""

    processes = 3
    model: type[RedisServer] = RedisServer
    servers = 1
    servers_drift = Scenario.drift

    def __init__(self, seed: int, programs: list[Program]) -> None:
        super().__init__(seed, programs)
        self.network = Network(self.world)
        self.forks = self.random.choice((0.0, 0.0, 0.02))
        self.nodes = [RedisNode(self, f"redis{number}", self.servers_drift) for number in range(self.servers)]

    def settings(self, number: int) -> Mapping[str, Any]:
        options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        return {"default": {"LOCATION": "redis://redis0:6379/0", "OPTIONS": options}}

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        every = self.random.choice((0.7, 2.0, 6.0, None))
        if every is None:  # where nothing is at fault, no answer is excused
            return [(0.15, self.interrupt_somebody)]
        return [
            *super().misfortunes(),
            (every, self.cut_a_way), (2 * every, self.let_a_connection_die), (2 * every, self.reset_a_connection),
            (every, self.delay_a_connection),
            (2 * every, self.stop_a_server), (4 * every, self.restart_a_server), (6 * every, self.kill_a_process),
            (3.0, self.set_a_clock),
        ]  # fmt: skip

    def forgotten(self, node: RedisNode) -> None:
        """README excepts it: a server that comes back without its data has no locks. Its fences go on by its clock."""
        node.machine.wall_ahead = node.right_clock
        node.began_anew = node.machine.wall()
        for history in self.histories.values():
            history.forget(self.world.moment(), range(int(node.machine.wall() * 1e6)))

    # Misfortunes --------------------------------------------------------------------------------------------------

    def _node(self) -> RedisNode:
        return self.random.choice(self.nodes)

    def _a_while(self) -> float:
        longest = 2.5 if self.rage < 10 else 8.0  # the latter is longer than places in a queue are remembered
        return self.random.choice((0.05, 0.3, 1.0, longest)) * EXPIRE

    def cut_a_way(self) -> None:
        process, node, seconds = self.random.choice(self.alive()), self._node(), self._a_while()
        answers = self.random.random() < 0.5
        self._at_fault_for(f"{process.name} cut from {node.machine.name}", seconds + TRACES)
        self.network.cut(process.machine, node.server, seconds, answers=answers)

    def _link(self) -> Link | None:
        return self.random.choice(self.network.links) if self.network.links else None

    def let_a_connection_die(self) -> None:
        """A firewall has forgotten it. Whoever uses it is not told."""
        link = self._link()
        if link is not None and not link.dead:
            link.dead = True
            link.when_closed = self.histories.fault("dead connection")

    def delay_a_connection(self) -> None:
        """What is sent on this one is late, what is sent on others is not."""
        link, seconds = self._link(), self._a_while()
        if link is not None:
            self._at_fault_for("late connection", seconds + TRACES)
            link.late_until = self.world.time + seconds

    def reset_a_connection(self) -> None:
        link = self._link()
        if link is not None:
            self._at_fault_for("reset connection", TRACES)
            link.reset()

    def stop_a_server(self) -> None:
        node, seconds = self._node(), self._a_while()
        self._at_fault_for(f"{node.machine.name} stopped", seconds + TRACES)
        node.server.stop(seconds)

    def restart_a_server(self) -> None:
        node, seconds = self._node(), self._a_while()
        if node.server.up:
            self._at_fault_for(f"{node.machine.name} restarted", seconds + TRACES)
            node.restart(seconds, empty=self.random.random() < 0.3)

    def kill_a_process(self) -> None:
        if len(self.alive()) > 1:
            process = self.random.choice(self.alive())
            process.kill()
            self._hang_up(process)
            for actor in self.actors:
                if actor.process is process:
                    actor.caller.killed()

    def _hang_up(self, process: Process) -> None:
        """Its kernel closes its connections; or its machine is gone, and nobody does."""
        gone = self.random.random() < 0.5
        for link in [link for link in self.network.links if link.process is process]:
            if gone:
                link.dead = True
            else:
                link.close()

    def set_a_clock(self) -> None:
        """On a wall. A server's not by much, and only back: README excepts a clock that jumps ahead.

        Nor to before it lost its data: it would give fences again that it has forgotten, which docs/fencing.md excepts.
        """
        if self.random.random() < 0.5:
            self.random.choice(self.alive()).machine.wall_ahead += self.random.uniform(-1000, 1000)
        elif self.servers_drift:
            node, seconds = self._node(), self.random.uniform(0, 0.3)
            if node.machine.wall() - seconds > node.began_anew:
                node.machine.wall_ahead -= seconds

    def limits(self) -> dict[str, Any]:
        return {"bound": LONGEST + 0.5, "honest": LONGEST + 1.0}


class RedisOnce(RedisScenario):
    """Jobs that are done once."""

    locks, jobs = 1, 2

    def limits(self) -> dict[str, Any]:
        # More wait for each of them: the lock of a process that has stopped may go to its waiter before it goes on.
        return {**super().limits(), "bound": LONGEST + EXPIRE + 0.5}


class RedisShared(Sharing, RedisScenario):
    """Readers and writers, and places, on Redis."""


class RedisNested(Nesting, RedisScenario):
    """Blocks inside of blocks, on Redis."""

    def forgotten(self, node: RedisNode) -> None:
        super().forgotten(node)
        self.nest.forget(range(int(node.machine.wall() * 1e6)))


class LongOutage(RedisScenario):
    """The server is gone for longer than a place in a queue is remembered, and comes back with its data."""

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        self.rage = 3.0
        self.world.at(self.random.uniform(0.5, 2.5), self._be_gone)
        return []

    def _be_gone(self) -> None:
        self._at_fault_for("outage", 8.0 * EXPIRE + TRACES)
        self.nodes[0].restart(8.0 * EXPIRE)

    def limits(self) -> dict[str, Any]:
        return {"bound": LONGEST + 0.5}


class Sentinel(RedisServer):
    """It says where the master is."""

    master = "redis0"

    def execute(self, connection: Connection, words: list[bytes]) -> Any:
        if words[0].upper() == b"SENTINEL":
            return [self.master.encode(), b"6379"]
        return super().execute(connection, words)


class SentinelScenario(RedisScenario):
    """A master and a replica that sentinels make the master; the last writes may be lost."""

    servers = 2
    servers_drift = (
        0.0  # and one time: a lease goes to the replica with the moment of its end, by the clock on the wall
    )

    def __init__(self, seed: int, programs: list[Program]) -> None:
        super().__init__(seed, programs)
        machine = Machine(self.world, "sentinel", self.drift)
        self.sentinel = Sentinel(machine.wall, name="sentinel", port=26379)
        Server(self.network, machine, ("sentinel", 26379), self.sentinel.connect)
        self.master, self.replica = self.nodes
        self.replica.machine.wall_ahead = self.replica.right_clock = self.master.right_clock
        self._make_replica()
        self._replicate()

    def settings(self, number: int) -> Mapping[str, Any]:
        options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        return {"default": {"LOCATION": "redis+sentinel://sentinel:26379/main/0", "OPTIONS": options}}

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        return [*super().misfortunes(), (3.0, self.fail_over)]

    def restart_a_server(self) -> None:
        """Whoever restarts is no longer the master."""

    def _make_replica(self) -> None:
        self.replica.model.role, self.master.model.role = "slave", "master"
        self.master.model.replicas, self.replica.model.replicas = [self.replica.model], []

    def _replicate(self) -> None:
        """From time to time the replica has all."""
        if self.master.server.up and self.replica.server.up:
            self.master.model.copy_to(self.replica.model)
        self.world.after(self.random.choice((0.001, 0.01, 0.1)), self._replicate)

    def fail_over(self) -> None:
        seconds, lossless = self._a_while(), self.random.random() < 0.5
        self._at_fault_for("failover", seconds + TRACES)
        if lossless:
            self.master.model.copy_to(self.replica.model)
        else:  # README excepts it: the replica may not know of the lock
            self.forgotten(self.master)
        self.master, self.replica = self.replica, self.master
        self.sentinel.master = self.master.machine.name
        self._make_replica()
        if self.random.random() < 0.5:
            self.replica.restart(seconds)
        else:  # it lives, is told that it is a replica, and lets go of its clients
            self.replica.server.go_down()
            self.replica.server.come_up()


class ReplicaWithGhosts(SentinelScenario):
    """A failover while many wait: what they say to the old master afterwards, the new one does not hear."""

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        return [(1.5, self.fail_over)]

    def limits(self) -> dict[str, Any]:
        return {"bound": LONGEST + 0.5}


class RedlockScenario(RedisScenario):
    """A quorum. What is said of one server's data holds for a minority of these."""

    restart_delay = 2.0
    servers_drift = 0.0  # NTP sets the clocks of a majority; of the others one or two are set, away from it

    def __init__(self, seed: int, programs: list[Program]) -> None:
        self.servers = 5 if seed % 4 == 3 else 3
        super().__init__(seed, programs)
        for node in self.nodes:
            node.machine.wall_ahead = node.right_clock = self.nodes[0].right_clock + self.random.uniform(0, 0.002)
        self._direction = self.random.choice((1, -1))
        self._at_fault_for("nodes are new", self.restart_delay + 1.0 + TRACES)
        self.rage += self.restart_delay + 1.0

    def settings(self, number: int) -> Mapping[str, Any]:
        where = ",".join(f"{node.machine.name}:6379" for node in self.nodes)
        options = {"socket_timeout": 0.1, "socket_connect_timeout": 0.1, "restart_delay": self.restart_delay}
        return {"default": {"LOCATION": f"redlock://{where}/0", "OPTIONS": options}}

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        # What happens to one of several has to happen more often.
        return [(every / 2, misfortune) for every, misfortune in super().misfortunes()]

    def forgotten(self, node: RedisNode) -> None:
        """One of them is not all of them."""

    def set_a_clock(self) -> None:
        """Of a minority, and never there and back again: docs/redlock.md excepts it."""
        if self.random.random() < 0.5:
            self.random.choice(self.alive()).machine.wall_ahead += self.random.uniform(-1000, 1000)
        else:
            node = self.random.choice(self.nodes[: self.servers // 2])
            self._at_fault_for(f"{node.machine.name}'s clock set", TRACES)
            node.machine.wall_ahead += self._direction * self._step()

    def _step(self) -> float:
        return self.random.choice((0.01, 0.05, 0.3, 60)) * self.random.random()

    def limits(self) -> dict[str, Any]:
        # Nodes that are new count from when a majority of them could first be asked, which a fault may put off.
        return {**super().limits(), "honest": LONGEST + self.restart_delay + 2.0}

    def restart_a_server(self) -> None:
        node, seconds = self._node(), self._a_while()
        if node.server.up:
            self._at_fault_for(f"{node.machine.name} restarted", seconds + TRACES + self.restart_delay + 1)
            node.restart(seconds, empty=self.random.random() < 0.5)


class ClockSetAfterStart(RedlockScenario):
    """A node comes back empty with a clock that is behind, and sets it then. One: the majority's clocks are right."""

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        return [(0.4, self.restart_a_server), (1.0, self.cut_a_way)]

    def restart_a_server(self) -> None:
        node = self.nodes[0]
        if node.server.up:
            node.machine.wall_ahead -= 60.0
            self._at_fault_for(f"{node.machine.name} restarted", 5 * TRACES)
            node.restart(0.1, empty=True)
            self.world.after(0.3, self._set_clock, node)

    def _set_clock(self, node: RedisNode) -> None:
        node.machine.wall_ahead += 60.0


class ClockSetAhead(RedlockScenario):
    """One node's clock is set ahead while somebody has a lock by its vote, and set right when all of these are over."""

    locks = 1

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        return [(0.5, self.set_one_ahead), (1.0, self.cut_a_way)]

    def set_one_ahead(self) -> None:
        machine, seconds = self.nodes[0].machine, LONGEST + self.restart_delay
        if machine.wall_ahead == self.nodes[0].right_clock:
            self._at_fault_for(f"{machine.name}'s clock ahead", seconds + TRACES)
            machine.wall_ahead += self._step()
            self.world.after(seconds, self._set_right)

    def _set_right(self) -> None:
        self.nodes[0].machine.wall_ahead = self.nodes[0].right_clock

    def limits(self) -> dict[str, Any]:
        return {}


class LateMessages(RedlockScenario):
    """Many messages come after their time-out, an undo after the next vote, while many want one lock."""

    locks = 1

    def __init__(self, seed: int, programs: list[Program]) -> None:
        super().__init__(seed, programs)
        self.network.slowest = self.random.choice((0.01, 0.03, 0.05))

    def misfortunes(self) -> list[tuple[float, Callable[[], None]]]:
        return [(0.3, self.interrupt_somebody), (1.0, self.delay_a_connection)]

    def calm(self) -> None:
        self.network.slowest = QUIET
        super().calm()

    def limits(self) -> dict[str, Any]:
        return {}
