"""The simulated nodes of a cluster answer as real ones do while a slot moves between them, byte for byte."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from distlock_web.backends.redis import scripts
from distlock_web.backends.redis.cluster.slots import SlotKeys, slot_of
from distlock_web.backends.redis.scripts.calls import Script, bulk, command, done_keys, extend_keys, pack_keys, queue_of
from distlock_web.core.runtime import Token
from tests.support.clock_shift import compiled_shim
from tests.support.simulation import compared
from tests.support.simulation.redis_cluster import SLOTS, ClusterServer
from tests.support.stores.cluster import ClusterNode
from tests.support.waiting import eventually

TRACES = compared.TRACES // 8
KEYS = SlotKeys("disLock:")


class StandingNode(compared.StandingRedis, ClusterNode):
    """One node, which never takes the other one for dead."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        # And one that has lost its last slot stays what it is.
        self.args += ("--cluster-node-timeout", "1000000000", "--cluster-allow-replica-migration", "no")


class Node(compared.Two):
    """Both servers, of one node: the real one, and the model that is called as that is."""

    real: StandingNode

    def __init__(self, real: StandingNode) -> None:
        self.time = compared.EPOCH
        self.node = ClusterServer(lambda: self.time, name="127.0.0.1", port=real.port)
        super().__init__(real, self.node)
        self.id = self.node.id = real.ask("CLUSTER", "MYID")

    def ask(self, *words: str | int) -> None:
        """Of the real one alone."""
        self.real.ask(*words)


class Nodes:
    """Two nodes. The first one serves all slots, until one is moved: each trace has its own lock, in a slot of its own.

    No slot ever moves back: nodes that have not heard of the last move yet would quarrel about it.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = self.source, self.target = nodes
        self.moved = set[int]()
        for node in nodes:
            node.node.owners = [nodes[0].node] * SLOTS

    def use(self, name: str) -> None:
        self.name, self.index = name, KEYS.index_of(name)
        self.slot = slot_of(name)
        self.state = "served"

    @property
    def time(self) -> float:
        return self.source.time

    def set_time(self, time: float) -> None:
        for node in self.nodes:
            node.set_time(time)

    def begin(self) -> None:
        self.state = "moving"
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.id)
        self.source.node.begin_move(self.slot, self.target.node)

    def carry(self, key: bytes) -> None:
        assert self.source.real.ask("MIGRATE", "127.0.0.1", self.target.real.port, key, 0, 20_000) in ("OK", "NOKEY")
        self.source.node.migrate(key, self.target.node)

    def finish(self) -> None:
        self.state = "moved"
        for key in self.source.real.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 100):  # with those that have ended
            self.carry(key.encode())
        for node in (self.target, self.source):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)
            node.node.learn(self.slot, self.target.node)

    @property
    def model(self) -> ClusterServer:
        """Where the lock is."""
        there = self.name.encode() in self.target.node.data.keys
        return (self.target if there else self.source).node


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ExitStack() as stack:
        reals = []
        for _ in range(2):
            real = StandingNode(compiled_shim(stack))
            real.shift(compared.EPOCH)
            reals.append(stack.enter_context(real))
        for number, real in enumerate(reals):
            real.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        reals[0].ask("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        reals[0].ask("CLUSTER", "MEET", "127.0.0.1", reals[1].port)
        passed = count(1)

        def are_one() -> bool:
            moment = compared.EPOCH + next(passed)  # a node waits for some seconds before it serves anything
            for real in reals:
                real.shift(moment)
            return all(map(_is_whole, reals))

        eventually(are_one, "both are in one cluster")
        yield Nodes([stack.enter_context(Node(real)) for real in reals])


def _is_whole(real: StandingNode) -> bool:
    told = real.ask("CLUSTER", "INFO")
    return "cluster_state:ok" in told and "cluster_slots_assigned:16384" in told and "cluster_known_nodes:2" in told


def _comparable(answer: bytes) -> bytes:
    """As of one server; but where a slot is, is compared as it is."""

    def known(error: re.Match[bytes]) -> bytes:
        if b"non local key" in error[0]:
            return b"=NONLOCAL"
        where = _WHERE.match(error[0])
        return b"=" + where[0][1:] if where else error[0]

    return compared.comparable(re.sub(rb"-[A-Z]{3,}[^\r]*", known, answer))


_WHERE = re.compile(rb"-(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|CROSSSLOT)\b[^\r]*")
Arguments = Callable[[Nodes, random.Random, str], tuple[str | int, ...]]


def _of_lock(script: Script, arguments: Arguments, *, joins: bool = False) -> Callable[[Nodes, random.Random], bytes]:
    def step(nodes: Nodes, chance: random.Random) -> bytes:
        args = arguments(nodes, chance, nodes.name)
        return script.call(KEYS.of(nodes.name, Token(args[0]) if joins else None), args, by_source=True)

    return step


def _finish(nodes: Nodes, chance: random.Random) -> bytes:
    keys = done_keys(nodes.name, nodes.index, KEYS.done_of(nodes.name))
    return scripts.FINISH.call(keys, compared.to_finish(nodes, chance, nodes.name), by_source=True)


def _extend(nodes: Nodes, chance: random.Random) -> bytes:
    args = (compared.some_token(nodes, chance, nodes.name), compared.some_ms(chance))
    return scripts.EXTEND.call(extend_keys([nodes.name], nodes.index), args, by_source=True)


def _look(nodes: Nodes, chance: random.Random) -> bytes:
    name, index = nodes.name, nodes.index
    tag = index[len(KEYS.indexes) + 1 : -1]
    asked = [
        scripts.INSPECT.call(pack_keys(name, queue_of(name)), (), by_source=True),
        scripts.NAMES.call(pack_keys(index), ("", 0, 3), by_source=True),
        scripts.WAITERS.call(pack_keys(name, queue_of(name)), (3,), by_source=True),
        scripts.INDEXED.call(pack_keys(), (KEYS.indexes, tag, "ABCD"), by_source=True),
        command("GET", name), command("PTTL", name), command("EXISTS", name, index), command("EXISTS", name, "other"),
        command("CLUSTER", "MYID"), command("PUBSUB", "NUMSUB", "x"),
        command("ZRANGE", index, 0, -1, "WITHSCORES"), command("PTTL", index),
    ]  # fmt: skip
    return chance.choice(asked)


STEPS_OF_A_TRACE: list[tuple[int, Callable[[Nodes, random.Random], bytes]]] = [
    (30, _of_lock(scripts.ACQUIRE, compared.to_acquire, joins=True)),
    (16, _of_lock(scripts.RELEASE, compared.to_release)),
    (4, _finish),
    (2, _of_lock(scripts.REVOKE, compared.to_forget)),
    (6, _of_lock(scripts.CANCEL, compared.to_cancel)),
    (4, _of_lock(scripts.DETACH, compared.to_detach)),
    (4, _of_lock(scripts.ATTACH, compared.to_attach)),
    (4, _of_lock(scripts.REVOKE, compared.to_revoke)),
    (10, _extend),
    (10, _look),
]


def _in_different_slots() -> Iterator[str]:
    known = set[int]()
    for name in map("disLock:{}".format, count()):
        if slot_of(name) not in known:
            known.add(slot_of(name))
            yield name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slot_moves_in_the_model_as_it_does_between_real_nodes(nodes: Nodes) -> None:
    weights = [weight for weight, _ in STEPS_OF_A_TRACE]
    seen, names = set[bytes](), _in_different_slots()
    for seed in range(TRACES):
        chance = random.Random(seed)
        nodes.use(next(names))
        for node in nodes.nodes:
            node.say(command("FLUSHALL"))
            for process in compared.PROCESSES:
                channel = f"distlock:wake:{process}:{node.id}"
                node.say(command(chance.choice(["SUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE"]), channel), listening=True)
        for step in range(compared.STEPS):
            nodes.set_time(nodes.time + chance.choices(compared.PAUSES, [4, 2, 4, 4, 2, 1, 0.1])[0])
            move = chance.random()
            if nodes.state == "served" and move < 0.1:
                nodes.begin()
            elif nodes.state == "moving" and move < 0.25:
                left = nodes.source.node.keys_in(nodes.slot)
                nodes.carry(chance.choice(left)) if left and move < 0.2 else nodes.finish()
            ((_, make),) = chance.choices(STEPS_OF_A_TRACE, weights)
            request = make(nodes, chance)
            node = chance.choice([nodes.source, nodes.source, nodes.target])
            if chance.random() < (0.8 if node is nodes.target else 0.1):
                request = command("ASKING") + request
            as_it_is = node.say_as_it_is(request)
            ours, theirs = map(_comparable, as_it_is)
            assert ours == theirs, f"trace {seed}, step {step}: {request[-300:]!r}: {as_it_is}"
            seen |= set(re.findall(rb"=([A-Z]+)", ours))
            ours, theirs = map(_comparable, node.say_as_it_is(b"", listening=True))
            assert ours == theirs, f"trace {seed}, step {step}, what was heard: {request[-300:]!r}"
    assert seen >= {b"MOVED", b"ASK", b"TRYAGAIN", b"CROSSSLOT", b"NONLOCAL"}


def test_a_node_that_wants_a_password_and_one_without_slots(nodes: Nodes) -> None:
    """Each is one that real clusters have, and that says so in words that we read."""
    model = ClusterServer(lambda: nodes.time, name="127.0.0.1", port=1)
    connection = model.connect()
    assert connection.feed(command("GET", "a")) == b"-CLUSTERDOWN Hash slot not served\r\n"
    assert connection.feed(command("CLUSTER", "SLOTS")) == b"*0\r\n"
    model.refuses = True
    real = nodes.source.real

    def says(*commands: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", real.port), timeout=10) as server:
            server.sendall(b"".join(commands))
            return server.recv(1000)

    real.ask("CONFIG", "SET", "requirepass", "secret")
    try:
        for words in (["GET", "a"], ["EVAL", "return 1", "0"], ["CLUSTER", "SLOTS"], ["GET", *"abcdefghijk"]):
            assert says(command(*words)) == connection.feed(command(*words))
    finally:
        assert says(command("AUTH", "secret"), command("CONFIG", "SET", "requirepass", ""))
    assert says(command("PING")) == b"+PONG\r\n"


def test_slots_are_listed_as_a_real_node_lists_them(nodes: Nodes) -> None:
    ours, theirs = nodes.source.say(command("CLUSTER", "SLOTS"))
    assert ours == theirs
    assert bulk(nodes.source.id) in ours
