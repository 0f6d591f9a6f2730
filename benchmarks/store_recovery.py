"""The holder is killed, in every store: how soon after its lease's end the next one has the lock."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from distlock_web import DistLockError, configure, held_locks, lock
from distlock_web.testing.servers import RedisServer, ServerMissing
from tests.support.database_servers import MariaDBServer, PostgresServer
from tests.support.stores.cluster import MASTERS, Cluster, ClusterNode
from tests.support.stores.redlock import NODES, redlock_url
from tests.support.stores.sentinel import SentinelSetup
from tests.support.zookeeper_server import ZooKeeperServer

from .contenders import OURS, Distlock
from .crowd import clock
from .plan import Bench, Recovery
from .processes import Processes
from .recovery import REFRESH, Aftermath, aftermath, summary, wait
from .results import Case, Measure

MEASURES = (
    Measure("p50", "ms"),
    Measure("p99", "ms", shown=0.99),
    Measure("longest", "ms", shown=1),
    Measure("gap", "ms", shown=1),
    Measure("unserved", "", 0, shown=1),
)
PATIENCE = 20.0  #: seconds that all may take to stand in the queue


def run(bench: Bench) -> Iterator[Case]:
    bench.expect(sum(len(STORES) * plan.kills for plan in bench.plan.store_recoveries))
    for plan in bench.plan.store_recoveries:
        yield _case(bench, plan)


def case_name(plan: Recovery) -> str:
    return f"every store, {plan.case}"


def row(store: str) -> str:
    return f"{OURS}, {store}"


def _case(bench: Bench, plan: Recovery) -> Case:
    title = f"In every store the holder is killed, {plan.waiting}: time after the end of its lease of {plan.expire} s"
    case = Case(case_name(plan), title, MEASURES, "")
    errors: Counter[str] = Counter()
    for store, serve in STORES.items():
        for seen in _kills(plan, store, serve, case.notes.append):
            if seen is not None:
                late = summary(seen, plan.processes * plan.threads)
                case.add(row(store), p99=late["longest"], **late)
                errors.update(f"{store}: {error}" for error in seen.errors)
            bench.step(f"{case.name}: {store}")
    case.notes += [f"{times} x {error}" for error, times in errors.most_common(5)]
    return case


def _kills(
    plan: Recovery, store: str, serve: Callable[[ExitStack], str], note: Callable[[str], None]
) -> Iterator[Aftermath | None]:
    """What came after each; None, where the store is not there."""
    with ExitStack() as stack:
        try:
            url = serve(stack)
        except (ServerMissing, ImportError) as missing:
            note(f"{store} was left out: {missing}.")
            yield from [None] * plan.kills
            return
        waiters = stack.enter_context(Processes(plan.processes, wait, url, plan.threads, plan.expire))
        for number in range(plan.kills):
            yield _kill(waiters, url, f"order:{number}", plan)


def _kill(waiters: Processes, url: str, key: str, plan: Recovery) -> Aftermath:
    """Let one process take the lock, let all others want it, and kill that one when it has just extended its lease."""
    waiters.tell(Distlock, key)
    failures = waiters.failures()
    with Processes(1, _hold, url, key, plan) as holder:
        list(holder.hear())  # has it
        waiters.tell("go")
        ((extended, error),) = holder.hear()
        holder.kill()
    seen = aftermath(waiters, extended, plan.expire, failures)
    return seen if error is None else replace(seen, lease_end=math.nan, errors=[*seen.errors, error])


def _hold(line: Connection, _: int, url: str, key: str, plan: Recovery) -> None:
    """Extend the lease until all are waiting, and once more then; say when, from before its server has heard of it."""
    configure({"default": {"LOCATION": url}})
    lease = lock(key, expire=plan.expire).acquire()
    line.send("has it")
    extended, until = clock(), clock() + PATIENCE
    try:
        while sum(held.lock.waiters for held in held_locks(key)) < plan.processes * plan.threads and clock() < until:
            lease.extend()
            time.sleep(REFRESH)
        extended = clock()
        lease.extend()
    except DistLockError as error:  # it could not keep the lock until all were waiting: a result
        line.send((extended, f"the holder, alive: {error}"))
    else:
        line.send((extended, None))
    line.recv()  # until killed


# How each store is started ------------------------------------------------------------------------------------------


def _cluster(stack: ExitStack) -> str:
    return Cluster([stack.enter_context(ClusterNode()) for _ in range(MASTERS)]).url


def _redlock(stack: ExitStack) -> str:
    return redlock_url([stack.enter_context(RedisServer()) for _ in range(NODES)])


def _sqlite(stack: ExitStack) -> str:
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="distlock-bench-")))
    return f"sqlite:///{folder}/locks.sqlite3"


#: By name: what starts a store, and says its URL.
STORES: Mapping[str, Callable[[ExitStack], str]] = {
    "Redis": lambda stack: stack.enter_context(RedisServer()).url,
    "Sentinel": lambda stack: stack.enter_context(SentinelSetup(1)).url(),
    "Cluster": _cluster,
    "Redlock": _redlock,
    "PostgreSQL": lambda stack: stack.enter_context(PostgresServer()).url,
    "MariaDB": lambda stack: stack.enter_context(MariaDBServer()).url,
    "SQLite": _sqlite,
    "ZooKeeper": lambda stack: stack.enter_context(ZooKeeperServer()).url,
}
