"""The leader's clock is set back while locks are held: nobody gets one that somebody else believes in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from distlock_web import configure, lock
from distlock_web.core.registry import Registry, registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.testing.fault_injector import FaultInjector
from tests.support.callers import Beside, unrelated
from tests.support.clock_shift import ShiftedZooKeeper, compiled_shim
from tests.support.requirements import require
from tests.support.waiting import LONG, SOON, eventually
from tests.support.zookeeper_server import zookeeper_programs

pytestmark = pytest.mark.slow

NAME = "disLock:order:7"
HOUR = 3600.0
#: Seconds of a lease that nothing but a wrong clock ends within this test.
EXPIRE = 30.0


@pytest.fixture
def shifted() -> Iterator[ShiftedZooKeeper]:
    require("zookeeper", zookeeper_programs)
    with ExitStack() as running:
        yield running.enter_context(ShiftedZooKeeper(compiled_shim(running)))


@pytest.fixture
def stores(shifted: ShiftedZooKeeper) -> Registry:
    """Two sessions, as of two processes: each knows of the leader's time what it was told itself."""
    return configure({alias: {"LOCATION": shifted.url} for alias in ("default", "other")})


def waiters(stores: Registry) -> int:
    return sum(line.waiters for line in drive(stores.store("other").port(THREADS).inspect([NAME])))


def look_now() -> None:
    """Whoever waits in the default store looks for himself, as he does when the lease that he knows of has ended."""
    faulty: Any = registry().store("default").backend
    faulty._backend._session._on_change()


def test_who_waits_does_not_end_a_lease_that_began_after_the_clock_was_set_back(
    shifted: ShiftedZooKeeper, stores: Registry, beside: Beside
) -> None:
    """By the time that he had heard a moment before it was over for an hour."""
    injector = FaultInjector(stores.store("default"))
    holder = unrelated("order:7", expire=EXPIRE, store="other")
    waiter = beside(lock("order:7", expire=EXPIRE, wait=LONG).acquire)
    eventually(lambda: waiters(stores) == 1, "it waits")
    unrelated("order:8").release()  # what time it is there
    shifted.shift(-HOUR)
    holder.extend()
    looked = injector.calls.count("wait")
    look_now()
    eventually(lambda: waiter.done() or injector.calls.count("wait") > looked, "it has looked")
    holder.extend()  # it is held still
    assert not waiter.done()
    holder.release()
    waiter.result(SOON).release()
