"""What one server holds: many held locks, many processes that wait, many locks a second. For docs/benchmarks.md."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import distlock_web
from distlock_web.testing.servers import RedisServer

from .crowd import clock
from .inside.page import look
from .plan import Bench
from .probe import Probe
from .processes import Processes
from .results import Case, Measure

OURS = "distlock_web"
KEY, EXPIRE, LONG = "order:00000042", 600, 3600
TASKS, LOADERS = 64, 3  #: enough of them that the server never waits for work
ARRIVAL, SETTLED = 0.01, 30.0  #: seconds between two that come to wait; after the last one
READERS, SHARES = (0, 100, 1000), 200


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(4)
    for case in (_throughput, _sharing, _waiting, _held):
        with RedisServer("--maxclients", "15000") as server:
            made = case(bench, server)
        bench.step(f"{made.name}: {OURS}")
        yield made


# Free locks ---------------------------------------------------------------------------------------------------------


def _throughput(bench: Bench, server: RedisServer) -> Case:
    title = f"Free locks, {LOADERS} processes of {TASKS} tasks: what a server's core can do"
    measures = (Measure("locks", "/s", 0), Measure("server CPU", "µs", 1), Measure("locks per server core", "/s", 0))
    case = Case("capacity, free locks", title, measures, "")
    with Processes(LOADERS, _lock_for_a_while, server.url, bench.plan.window) as loaders, Probe(server.url) as probe:
        list(loaders.hear())  # connected
        cpu, since = probe.cpu(), time.perf_counter()
        loaders.tell("go")
        locks = sum(loaders.hear())
        cpu, seconds = probe.cpu() - cpu, time.perf_counter() - since
    each = cpu / locks
    case.add(OURS, **{"locks": locks / seconds, "server CPU": each * 1e6, "locks per server core": 1 / each})
    return case


def _lock_for_a_while(line: Connection, number: int, url: str, seconds: float) -> None:
    registry = distlock_web.configure({"default": {"LOCATION": url}})

    async def work(name: str, until: float) -> int:
        locks = 0
        while time.monotonic() < until:
            async with distlock_web.lock(f"{name}:{locks}", expire=10):
                locks += 1
        return locks

    async def all_of_them(seconds: float) -> int:
        until = time.monotonic() + seconds
        return sum(await asyncio.gather(*(work(f"{number}:{task}", until) for task in range(TASKS))))

    asyncio.run(all_of_them(0.05))
    line.send("connected")
    line.recv()
    line.send(asyncio.run(all_of_them(seconds)))
    registry.close()


# Several holders ----------------------------------------------------------------------------------------------------


def _sharing(bench: Bench, server: RedisServer) -> Case:
    """Of one more holder beside others: take it, and give it back."""
    title = "A lock that several hold: one more holder enters and leaves"
    measures = (Measure("commands", "", 1), Measure("server CPU", "µs", 1))
    case = Case("capacity, sharing", title, measures, "")
    registry = distlock_web.configure({"default": {"LOCATION": server.url}})
    kinds: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("limit=2, free", {"limit": 2}, 0),
        *((f"shared, beside {others} readers", {"shared": True}, others) for others in READERS),
    )
    with Probe(server.url) as probe:
        for name, options, others in kinds:
            lock = partial(distlock_web.lock, f"share:{name}", expire=LONG, **options)
            with ExitStack() as stack:
                for _ in range(others):
                    stack.callback(contextvars.Context().run(lock().acquire).release)
                for turn in range(bench.plan.crowd_rounds + 1):
                    before, cpu = probe.stats().calls.total(), probe.cpu()
                    for _ in range(SHARES):
                        with lock():
                            pass
                    cpu, after = probe.cpu() - cpu, probe.stats().calls.total()
                    if turn:  # the first one connects, loads scripts
                        row = {"commands": (after - before) / SHARES, "server CPU": cpu / SHARES * 1e6}
                        case.add(name, **row)
    registry.close()
    return case


# Processes that wait ------------------------------------------------------------------------------------------------


def _waiting(bench: Bench, server: RedisServer) -> Case:
    count = bench.plan.waiting_processes
    title = f"{count:,} processes wait for one lock, and each takes it once"
    measures = (
        Measure("connections", "", 0),
        Measure("bytes per connection", "", 0),
        Measure("bytes per waiter", "", 0),
        Measure("hand-overs", "/s", 0),
        Measure("server CPU", "µs", 0),
        Measure("unserved", "", 0, largest=True),
    )
    case = Case("capacity, waiting", title, measures, "")
    with Processes(count, _wait_once, server.url) as waiters, Probe(server.url) as probe:
        list(waiters.hear())  # started
        keys, memory = probe.memory(), probe.clients_memory()
        with _somebody_holds(server.url):
            waiters.tell("go")
            _until_all_wait(count)
            keys, memory = probe.memory() - keys, probe.clients_memory() - memory
            connections = probe.connections()
            cpu = probe.cpu()
        turns = [turn for turn in waiters.hear() if turn is not None]
        cpu = probe.cpu() - cpu
    lasted = max(turns) - min(turns)
    row = {
        "connections": connections,
        "bytes per connection": memory / connections,
        "bytes per waiter": keys / len(turns),
        "hand-overs": (len(turns) - 1) / lasted,
        "server CPU": cpu / len(turns) * 1e6,
        "unserved": count - len(turns),
    }
    case.add(OURS, **row)
    return case


@contextmanager
def _somebody_holds(url: str) -> Iterator[None]:
    registry = distlock_web.configure({"default": {"LOCATION": url}})
    with distlock_web.lock(KEY, expire=LONG):
        yield
    registry.close()


def _until_all_wait(count: int) -> None:
    """Or until no more have come for a while: on a busy machine some have given up, and are counted as unserved."""
    waiting, since = 0, clock()
    while waiting < count and clock() - since < SETTLED:
        time.sleep(0.1)
        try:
            (held,) = distlock_web.held_locks()
        except distlock_web.BackendUnavailable:
            continue  # they all connect just now
        if held.lock.waiters > waiting:
            waiting, since = held.lock.waiters, clock()


def _wait_once(line: Connection, number: int, url: str) -> None:
    registry = distlock_web.configure({"default": {"LOCATION": url}})
    line.send("started")
    line.recv()
    time.sleep(number * ARRIVAL)
    try:
        with distlock_web.lock(KEY, expire=10, wait=300):
            got = clock()
    except distlock_web.DistLockError:
        line.send(None)
    else:
        line.send(got)
    registry.close()


# Held locks ---------------------------------------------------------------------------------------------------------


def _held(bench: Bench, server: RedisServer) -> Case:
    count = bench.plan.held_locks
    title = f"{count:,} locks that are held, and renewed for {bench.plan.renewal:g} s"
    measures = (
        Measure("bytes per lock", "", 0),
        Measure("list all", "s", 2),
        Measure("page", "ms", 1),
        Measure("longest request", "ms", 1),
        Measure("renewals", "/s", 0),
        Measure("requests", "/s", 1),
        Measure("server CPU", "% of a core", 2),
        Measure("client CPU", "% of a core", 2),
        Measure("lost", "", 0, largest=True),
    )
    case = Case("capacity, held", title, measures, "")
    expire = bench.plan.renewal * 3  # each is renewed once in the time that is measured
    registry = distlock_web.configure({"default": {"LOCATION": server.url}})
    with Probe(server.url) as probe:
        before = probe.memory()
        leases = [_unrelated(f"order:{n:08d}", expire) for n in range(count)]
        memory = probe.memory() - before
        since = time.perf_counter()
        listed = len(distlock_web.held_locks())
        listing = time.perf_counter() - since
        page, cpu = probe.longest_of(partial(look, registry)), probe.cpu()
        look(registry)
        page_cpu = probe.cpu() - cpu
        asked, cpu, own = probe.scripts(), probe.cpu(), time.process_time()
        time.sleep(bench.plan.renewal)
        asked, cpu, own = probe.scripts() - asked, probe.cpu() - cpu, time.process_time() - own
    row = {
        "bytes per lock": memory / count,
        "list all": listing,
        "page": page_cpu * 1e3,
        "longest request": page * 1e3,
        "renewals": count / bench.plan.renewal,
        "requests": asked / bench.plan.renewal,
        "server CPU": cpu / bench.plan.renewal * 100,
        "client CPU": own / bench.plan.renewal * 100,
        "lost": count - listed + sum(lease.state != "held" for lease in leases),
    }
    case.add(OURS, **row)
    releasers = [threading.Thread(target=_release, args=(leases[part::8],)) for part in range(8)]
    for thread in releasers:
        thread.start()
    for thread in releasers:
        thread.join()
    registry.close()
    return case


def _unrelated(key: str, expire: float) -> distlock_web.Lease:
    """As another request takes it: not nested in those before."""
    return contextvars.Context().run(distlock_web.lock(key, expire=expire, renew=True).acquire)


def _release(leases: list[distlock_web.Lease]) -> None:
    for lease in leases:
        lease.release()
