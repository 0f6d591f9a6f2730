"""A free lock on five independent servers: all up, and with one that refuses or hangs."""

from __future__ import annotations

import secrets
import select
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import redis

from distlock_web.testing.servers import RedisServer

from .contenders import COMPARE_AND_DELETE, EXPIRE, OURS, Distlock
from .plan import Bench, in_turns
from .results import Case, Measure

NODES, MAJORITY = 5, 3
CYCLES = 200  #: in one sample
MEASURES = (Measure("acquire p50", "µs", compared=True),)
#: How one of the nodes is before anything is measured.
STATES: dict[str, Callable[[RedisServer], None] | None] = {
    "all up": None,
    "one refuses": RedisServer.kill,
    "one hangs": RedisServer.pause,
}

#: Seconds for one acquisition.
Acquire = Callable[[str], float]


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(len(STATES) * 4 * bench.plan.rounds)
    for state, fail in STATES.items():
        yield _case(bench, state, fail)


def _case(bench: Bench, state: str, fail: Callable[[RedisServer], None] | None) -> Case:
    case = Case(f"redlock, {state}", f"A free lock on {NODES} servers ({state}), by one thread", MEASURES, Quorum.name)
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(NODES)]
        # The plain quorum is the floor, whatever happens to a node: it is not asked the one that fails.
        floor = Quorum([server for server in servers if fail is None or server is not servers[1]])
        contenders: dict[str, Acquire] = {Quorum.name: floor.acquire}
        ours = stack.enter_context(_Ours(servers))
        contenders[OURS] = ours.acquire
        for name, peer in _peers(servers, case.notes.append):
            contenders[name] = peer
        for acquire in contenders.values():
            _p50(acquire, CYCLES)
        if fail is not None:
            fail(servers[1])
            for name in [name for name in contenders if name not in (Quorum.name, OURS)]:
                case.notes.append(f"{name} was left out: it waits for every node, or fails.")
                del contenders[name]
        for name in in_turns(list(contenders), bench.plan.rounds):
            case.add(name, **{"acquire p50": _p50(contenders[name], CYCLES)})
            bench.step(f"{case.name}: {name}")
    return case


def _p50(acquire: Acquire, cycles: int) -> float:
    return statistics.median(acquire(f"order:{secrets.token_hex(4)}") for _ in range(cycles)) * 1e6


class Quorum:
    """``SET NX PX`` on every node over plain sockets, until a majority has answered: the least that can be sent."""

    name = "plain quorum"

    def __init__(self, servers: list[RedisServer]) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", server.port)) for server in servers]
        for server in servers:
            with redis.Redis.from_url(server.url) as client:
                self._release = client.script_load(COMPARE_AND_DELETE)
        self._poll = select.poll()
        self._by_descriptor = {each.fileno(): each for each in self._sockets}
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.POLLIN)
        self._owed = dict.fromkeys(self._by_descriptor, 0)

    def acquire(self, key: str) -> float:
        token = secrets.token_hex(16)
        begun = time.perf_counter()
        self._ask("SET", key, token, "NX", "PX", str(EXPIRE * 1000))
        seconds = time.perf_counter() - begun
        self._ask("EVALSHA", self._release, "1", key, token)
        return seconds

    def _ask(self, *words: str) -> None:
        packed = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words)
        for descriptor, connection in self._by_descriptor.items():
            connection.sendall(packed)
            self._owed[descriptor] += 1
        answered = 0
        while answered < MAJORITY:
            for descriptor, _ in self._poll.poll():
                self._owed[descriptor] -= self._by_descriptor[descriptor].recv(4096).count(b"\r\n")
                answered += self._owed[descriptor] == 0


class _Ours(Distlock):
    def __init__(self, servers: list[RedisServer]) -> None:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        super().__init__(f"redlock://{hosts}/0?restart_delay=0")

    def __enter__(self) -> _Ours:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acquire(self, key: str) -> float:
        taken = self._lock(key, expire=EXPIRE)
        begun = time.perf_counter()
        lease = taken.acquire()
        seconds = time.perf_counter() - begun
        lease.release()
        return seconds


def _peers(servers: list[RedisServer], note: Callable[[str], None]) -> Iterator[tuple[str, Acquire]]:
    try:
        import pottery
    except ImportError as error:
        note(f"pottery was left out: {error}.")
        return
    masters = {redis.Redis.from_url(server.url) for server in servers}

    def acquire(key: str) -> float:
        lock = pottery.Redlock(key=key, masters=masters, auto_release_time=EXPIRE)
        begun = time.perf_counter()
        lock.acquire()
        seconds = time.perf_counter() - begun
        lock.release()
        return seconds

    yield "pottery Redlock", acquire
