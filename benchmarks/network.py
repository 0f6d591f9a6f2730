"""The same over a network: a relay in between, which holds back each question and each answer for a moment."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from multiprocessing.connection import Connection

import redis

from .contenders import CONTENDED, FREE, DjangoRedis
from .handoff import THINK, title_of
from .handoff import case_of as crowd_case
from .plan import Bench
from .processes import Processes
from .results import Case
from .uncontended import case_of, one_thread

ONE_WAY = 0.00025  #: seconds
PINGS = 500
CROWD = 2
#: django-redis's cache is set up once for each process: here, by a scenario before, without the relay.
NETWORK = [kind for kind in FREE if kind is not DjangoRedis]


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(len(NETWORK) * bench.plan.rounds + len(CONTENDED) * bench.plan.crowd_rounds)
    with Processes(1, _relay, bench.server.port) as relay:
        (port,) = relay.hear()
        url = f"redis://127.0.0.1:{port}/0"
        note = f"A PING takes {ping(url):.0f} µs there, and {ping(bench.server.url):.0f} µs without the network."
        one_key = partial(one_thread, repeat("order:00000042"))
        title = f"A free lock, 1 thread, with {2000 * ONE_WAY:g} ms of network"
        free = case_of(bench, "network, 1 thread", title, one_key, url=url, kinds=NETWORK)
        free.notes.append(note)
        yield free
        title = f"{title_of(CROWD)}, with {2000 * ONE_WAY:g} ms of network"
        yield crowd_case(bench, CROWD, f"network, {CROWD} waiters", title, THINK, url)


def ping(url: str) -> float:
    """Microseconds: the median."""
    times = []
    with redis.Redis.from_url(url) as client:
        for _ in range(PINGS):
            since = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - since)
    return statistics.median(times) * 1e6


def _relay(line: Connection, _: int, port: int) -> None:
    """A process of its own: its threads take no turn from those that are measured."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    line.send(listening.getsockname()[1])
    threading.Thread(target=_accept, args=(listening, port), daemon=True).start()
    try:
        line.recv()
    except EOFError:
        pass  # the case is over


def _accept(listening: socket.socket, port: int) -> None:
    while True:
        client, _ = listening.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for source, target in ((client, server), (server, client)):
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Threads that sleep, for asyncio counts in milliseconds."""
    try:
        while data := source.recv(65536):
            time.sleep(ONE_WAY)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one of them has gone
