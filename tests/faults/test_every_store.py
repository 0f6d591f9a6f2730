"""What holds on every store that processes share: nothing is lost, and a killed holder costs its lease.

How a store's own server fails (a restart, a failover, silence) is in ``tests/backends``, store by store.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from distlock_web.core.backend import SHARED
from tests.support.lab import Lab
from tests.support.waiting import SLACK

#: Seconds for a whole crowd to have its turns, on a machine that is busy otherwise.
LONG = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LONG)]

#: Each has a fixture ``<name>_settings``, in ``tests/support/stores``. Their own files kill holders, too.
AT_NIGHT = ("sentinel", "cluster", "redlock", "postgres", "mariadb", "zookeeper")
STORES = ["redis", "sqlite", *(pytest.param(store, marks=pytest.mark.nightly) for store in AT_NIGHT)]

PROCESSES, ROUNDS = 8, 100


@pytest.fixture(params=STORES)
def laboratory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Worker processes over an empty store of each kind."""
    made = Lab(request.getfixturevalue(f"{request.param}_settings"), tmp_path)
    yield made
    made.close()


def test_eight_processes_lose_no_update(laboratory: Lab) -> None:
    """Each reads the counter, sleeps, and writes it: without the lock most updates would be lost."""
    modes = ("threads", "asyncio")
    crowd = laboratory.ready(
        *({"mode": modes[number % 2], "rounds": ROUNDS, "section": 0.0005} for number in range(PROCESSES))
    )
    for worker in crowd:
        worker.go()
    assert [worker.join(LONG) for worker in crowd] == [0] * PROCESSES
    assert laboratory.history.violations(counter=laboratory.counter) == []
    assert laboratory.counter == PROCESSES * ROUNDS


def test_a_killed_holder_costs_its_lease_whatever_the_number_of_waiters(laboratory: Lab) -> None:
    expire = 1.0
    holder, *crowd = laboratory.ready(
        {"hold": True, "expire": expire}, *({"mode": mode} for mode in ("threads", "asyncio") * 3)
    )
    holder.go()
    taken = holder.saw("acquired")
    for worker in crowd:
        worker.go()
        worker.saw("wanted")
    holder.kill()
    assert [worker.join() for worker in crowd] == [0] * len(crowd)
    first, *others = sorted(worker.saw("acquired").at for worker in crowd)
    assert first - taken.at < expire + SLACK
    assert others[-1] - first < SLACK, "the others do not wait for leases that nobody has"
    assert laboratory.history.violations(counter=laboratory.counter) == []


@pytest.mark.parametrize(
    "laboratory",
    ["redis", "sqlite", *(pytest.param(store, marks=pytest.mark.nightly) for store in ("postgres", "mariadb"))],
    indirect=True,
)
def test_never_more_are_inside_than_the_smallest_limit_also_when_some_are_killed(laboratory: Lab) -> None:
    limits = (1, 2, SHARED, SHARED, SHARED, 2)  # of those that live on, two may be beside each other
    crowd = laboratory.ready(
        *(
            {"mode": ("threads", "asyncio")[number % 2], "limit": limit, "rounds": 15, "section": 0.02, "expire": 1.0}
            for number, limit in enumerate(limits)
        )
    )
    for worker in crowd:
        worker.go()
    for worker in crowd[:3]:
        worker.saw("acquired", 4)
        worker.kill()
    assert [worker.join(LONG) for worker in crowd[3:]] == [0] * 3
    assert laboratory.history.violations() == []
    sections = laboratory.history.sections()
    beside = [one.actor for one, other in pairwise(sections) if other.begin < one.end]
    assert beside, "nobody was ever beside anybody"
