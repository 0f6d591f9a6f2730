"""The simulated network: what it must not do to a connection."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.simulation.network import Network, Server
from tests.support.simulation.world import Machine, World


class End:
    """Either end of a connection, with what has come; a server's says it again."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.push: Callable[[bytes], None] = self.heard.append

    def feed(self, data: bytes) -> bytes:
        self.heard.append(data)
        return data

    def receive(self, data: bytes) -> None:
        self.heard.append(data)

    def connected(self) -> None: ...

    def broken(self, error: OSError | None) -> None: ...

    def close(self) -> None: ...


def test_what_is_put_off_on_its_way_stays_in_order() -> None:
    """As in TCP. Answers came for one another, and the simulation found two holders who were none."""
    world = World(0)
    network = Network(world)
    server, here, there = End(), End(), Machine(world, "there")
    process = world.process(Machine(world, "here"), "process")
    listening = Server(network, there, ("there", 1), lambda: server)
    link = network.connect(process, ("there", 1), here)
    world.run(1.0)
    sent = [bytes([number]) for number in range(1, 40)]
    for data in sent:
        link.send(data)
    network.cut(process.machine, listening, 0.5)
    network.cut(process.machine, listening, 0.8, answers=True)
    world.run(3.0)
    assert server.heard == sent
    assert here.heard == sent
