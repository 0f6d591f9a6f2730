"""Servers and clean state for every test.

A server that is missing skips its tests and says so; with DISTLOCK_REQUIRE_SERVERS (all, or names) it fails them, so
that CI cannot become green by skipping. Each pytest-xdist worker starts its own servers.

``-m quick`` selects what one runs after each edit: no server beyond Redis, no process but the tests' own, nothing that
takes its time.
"""

from __future__ import annotations

import contextvars
import gc
import inspect
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import hypothesis
import pytest
import redis

from distlock_web import Lease, LeaseLost, configure, lock
from distlock_web.core import registry
from distlock_web.kit import outage
from distlock_web.locks.reentry import chain
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.servers import RedisServer, ServerMissing
from tests.support.callers import Beside
from tests.support.database_servers import MariaDBServer, PostgresServer, mariadb_programs, postgres_programs
from tests.support.databases import Database, Kind, new_database
from tests.support.lab import Lab
from tests.support.origins import end_request
from tests.support.proxy import Proxy
from tests.support.requirements import require, require_redis, skipped_for, without
from tests.support.stores.cluster import cluster, cluster_settings, whole_cluster  # noqa: F401 - fixtures
from tests.support.stores.etcd_fixtures import etcd_server, etcd_settings  # noqa: F401 - fixtures
from tests.support.stores.redlock import own_nodes, redlock_nodes, redlock_servers, redlock_settings  # noqa: F401 - fixtures
from tests.support.stores.sentinel import sentinel_settings, sentinel_setup  # noqa: F401 - fixtures
from tests.support.stores.sql import (  # noqa: F401 - fixtures
    mariadb_django_settings,
    mariadb_locks,
    mariadb_settings,
    postgres_django_settings,
    postgres_locks,
    postgres_settings,
    sqlite_django_settings,
    sqlite_settings,
)
from tests.support.stores.valkey import valkey_server, valkey_settings  # noqa: F401 - fixtures
from tests.support.stores.zookeeper import (  # noqa: F401 - fixtures
    _zookeeper,
    zookeeper_server,
    zookeeper_settings,
    zookeeper_url,
)

#: A test that uses one of these, or lies in one of these folders and files, is not quick.
NOT_QUICK = {
    "postgres_server", "mariadb_server", "sqlite_settings", "zookeeper_server", "own_zookeeper", "etcd_server",
    "whole_cluster", "sentinel_setup", "valkey_server", "redlock_servers", "own_nodes", "quorum",
    "lab", "own_lab", "browser", "start", "demo", "pytester",
}  # fmt: skip
PATHS_NOT_QUICK = {
    "benchmarks", "browser", "cli", "docs", "example", "faults", "observability", "test_house.py",
    "backends/cluster", "backends/redlock", "backends/zookeeper",
    "backends/test_etcd.py",
    *(f"backends/test_{store}.py" for store in ("cluster", "redlock", "sentinel", "sql", "valkey", "zookeeper")),
}  # fmt: skip
SERVERS = {"postgres", "mariadb"}
#: Nor is one of these, for all that takes a second or starts a program; first, cases of the contract.
LONG_TESTS = {
    "test_300_cancellations_at_random_moments_leave_nothing",
    "test_waiters_that_give_up_at_the_hand_over_pass_the_lock_on",
    "test_a_close_loses_no_wake_up",
    "test_a_closed_loops_waiter_does_not_stay",
    "test_a_function_in_a_models_module_may_be_until_commit",
    "test_a_lock_is_kept_while_its_block_waits_for_its_turn_inside_another",
    "test_a_node_of_a_cluster_is_refused_by_name",
    "test_many_threads_share_two_connections",
    "test_no_sentinel_answers",
    "test_the_end_of_a_loop_leaves_no_lock_held",
}
#: Of those that are not quick, what ``make test`` runs: SQLite, real processes, the first seeds of the simulation. By
#: file, what the name of one begins with.
FIRST = {
    "backends/test_sql.py": "TestSQLite",
    "faults/test_web_servers.py": "test_two_workers_under_one_lock",
    "simulation/test_simulation.py": "test_no_seed_finds_a_violation",
    "tasks/test_celery_workers.py": "test_a_lock_goes_from_a_view_to_the_task_and_is_never_free[prefork]",
}
HERE = Path(__file__).parent

# The same examples on every machine, however slow that one is, and nothing that an earlier run has left in a folder.
hypothesis.settings.register_profile(
    "fixed", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fixed")

# A script that starts the tests in its background has a shell that ignores these, and so would every child of ours: a
# command that is sent one would never end.
for _signal in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # To collect what is not selected takes as long as to collect what is.
    chosen = config.option.markexpr
    if chosen == "quick or first" and any((HERE / first).is_relative_to(collection_path) for first in FIRST):
        return None
    return (chosen in ("quick", "quick or first") and _is_apart(collection_path)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE / "cli"):
            item.add_marker("cli")
        if _waits_for_leases(item):
            item.add_marker("timing")
            if re.search(getattr(item.cls, "at_night", "$^"), item.name):  # type: ignore[attr-defined]
                item.add_marker("nightly")
        if _is_quick(item):
            item.add_marker("quick")
        elif _is_first(item):
            item.add_marker("first")


def pytest_collection_finish() -> None:
    # A full collection looks at all that the thousands of tests are made of, for a second; now at what a test has made.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    return (yield from _with_what_is_there())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    return (yield from _with_what_is_there())


def _with_what_is_there() -> Generator[None]:
    try:
        return (yield)
    except ServerMissing as missing:  # Redis is what tests start themselves, without a fixture that asks for it first
        without("redis", missing)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # For .ci/still, which knows when the machine stood still.
    if report.failed and (file := os.environ.get("DISTLOCK_FAILED_TESTS")) and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(file, "a", encoding="utf-8") as failed:
            failed.write(f"{report.start} {report.stop} {report.nodeid}\n")


def pytest_sessionfinish() -> None:
    # What is measured is written at a worker's exit, for which xdist waits ten seconds: on a busy machine it was lost.
    measuring = sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None
    if measuring is not None:
        measuring.save()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.getreports(kind)]
    timing = {report.nodeid for report in reports if "timing" in getattr(report, "keywords", ())}
    if timing:
        terminalreporter.write_line(f"{len(timing)} of the tests need real time: they are marked timing")
    skipped = [report for report in reports if report.skipped]
    if line := skipped_for(str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)


def _waits_for_leases(item: pytest.Item) -> bool:
    """Whether it is a case on a store with a short lease that has to live: one that ends may do so sooner."""
    if not isinstance(item, pytest.Function) or item.cls is None or "settings" not in item.fixturenames:
        return False
    codes = [inspect.unwrap(item.function).__code__]
    for code in codes:
        if "kept" in code.co_names:
            return True
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return False


def _is_apart(path: Path) -> bool:
    relative = path.relative_to(HERE)
    return not PATHS_NOT_QUICK.isdisjoint((relative.as_posix(), relative.parts[0], "/".join(relative.parts[:2])))


def _is_first(item: pytest.Item) -> bool:
    named = FIRST.get(item.path.relative_to(HERE).as_posix())
    name = item.nodeid.partition("::")[2]
    return named is not None and name.startswith(named) and item.get_closest_marker("nightly") is None


def _is_quick(item: pytest.Item) -> bool:
    if _is_apart(item.path) or not isinstance(item, pytest.Function):
        return False
    if any(item.get_closest_marker(marker) for marker in ("slow", "nightly", "timing")):
        return False
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    servers = SERVERS.intersection(value for value in chosen if isinstance(value, str))
    return not (servers or item.originalname in LONG_TESTS or NOT_QUICK.intersection(item.fixturenames))


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    """No test sees the stores, the leases or the request id of another, and none leaves a listening thread behind."""
    before = registry._configured
    url = os.environ.pop("DISTLOCK_URL", None)
    end_request()
    chain.swap_scopes()
    yield
    end_request()
    if url is not None:
        os.environ["DISTLOCK_URL"] = url
    for configured in {registry._configured, before}:
        if configured is not None:
            configured.close()
    registry._configured = before
    leaked = _listeners_after(20.0)  # one whose store was closed under a waiter lingers for five
    if leaked:
        pytest.fail(f"threads left behind after the stores were closed: {', '.join(leaked)}")


outage.KEPT_AFTER_CLOSE = 0.2  # the servers of most tests do not come back


def _listeners_after(patience: float) -> list[str]:
    # The watchdog's thread may linger: it belongs to the process, not to a store.
    until = time.monotonic() + patience
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("distlock-")]
        names = [name for name in names if name != "distlock-watchdog"]
        if not names or time.monotonic() > until:
            return names
        time.sleep(0.01)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the whole session; tests that pause, stop or configure one use ``make_redis``."""
    require_redis()
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of an empty Redis."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.script_flush()
    return redis_server.url


@pytest.fixture
def redis_settings(redis_url: str) -> dict[str, Any]:
    """One entry of DISTLOCK; the other stores have theirs in tests/support/stores."""
    return {"BACKEND": "redis", "LOCATION": redis_url}


@pytest.fixture
def redis_store(redis_url: str) -> str:
    """The default store is an empty Redis; gives its URL."""
    configure({"default": {"BACKEND": "redis", "LOCATION": redis_url}})
    return redis_url


@pytest.fixture
def memory_store() -> None:
    """The default store is an empty memory backend."""
    configure({"default": {"BACKEND": "memory"}})


@pytest.fixture(params=["memory", "redis"])
def store_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One alias of ``DISTLOCK``: an empty store of each kind."""
    if request.param == "memory":
        return {"BACKEND": "memory"}
    return {"BACKEND": "redis", "LOCATION": request.getfixturevalue("redis_url")}


@pytest.fixture
def store(store_settings: dict[str, Any]) -> str:
    """The default store is an empty one of each kind; gives its backend's name."""
    configure({"default": store_settings})
    return str(store_settings["BACKEND"])


@pytest.fixture
def injector(store_settings: dict[str, Any], settings: Any) -> FaultInjector:
    """On the way to the default store of the Django project, empty: one of each kind."""
    settings.DISTLOCK = {"default": store_settings}
    return FaultInjector(registry.registry().store("default"))


@pytest.fixture
def memory(settings: Any) -> None:
    """The default store of the Django project is in memory, empty."""
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Lease]]:
    """Hold a lock outside of the test's own call chain, which would re-enter it: ``elsewhere("order:7")``."""
    held: list[tuple[contextvars.Context, Lease]] = []

    def hold(key: str, **options: Any) -> Lease:
        context = contextvars.Context()
        lease = context.run(lock(key, **{"expire": 10, **options}).acquire)
        held.append((context, lease))
        return lease

    yield hold
    for context, lease in held:
        if lease.state == "held":
            with suppress(LeaseLost):  # released by force: the lease does not know it yet
                context.run(lease.release)


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as connected:
        yield connected


@pytest.fixture
def make_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start a Redis for this test alone: ``make_redis("--requirepass", "secret")``."""
    require_redis()
    with ExitStack() as servers:
        yield lambda *args: servers.enter_context(RedisServer(*args))


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    """A proxy in front of the session's (empty) Redis."""
    with Proxy(redis_server.port) as running:
        yield running


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], Proxy]]:
    with ExitStack() as proxies:
        yield lambda port: proxies.enter_context(Proxy(port))


@pytest.fixture
def lab(redis_url: str, tmp_path: Path) -> Iterator[Lab]:
    """Worker processes over the session's (empty) Redis."""
    laboratory = Lab(redis_url, tmp_path)
    yield laboratory
    laboratory.close()


@pytest.fixture
def own_lab(make_redis: Callable[..., RedisServer], tmp_path: Path) -> Iterator[tuple[Lab, RedisServer]]:
    """Worker processes over a server of their own, to restart and to freeze."""
    server = make_redis()
    laboratory = Lab(server.url, tmp_path)
    yield laboratory, server
    server.resume()
    laboratory.close()


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Run a call in a thread and a context of its own: ``beside(call, ...).result(SOON)``."""
    with ThreadPoolExecutor(8) as pool:

        def start(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
            return pool.submit(contextvars.Context().run, partial(call, *args, **kwargs))

        yield start


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    require("postgres", postgres_programs)
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    require("mariadb", mariadb_programs)
    with MariaDBServer() as server:
        yield server


@pytest.fixture
def make_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Kind], Database]]:
    """A new, empty database: ``make_database("postgres")``."""
    with ExitStack() as databases:

        def make(kind: Kind) -> Database:
            port = 0 if kind == "sqlite" else request.getfixturevalue(f"{kind}_server").port
            return databases.enter_context(new_database(kind, port, tmp_path))

        yield make


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database(request: pytest.FixtureRequest, make_database: Callable[[Kind], Database]) -> Database:
    """A new, empty database of each kind."""
    return make_database(request.param)
