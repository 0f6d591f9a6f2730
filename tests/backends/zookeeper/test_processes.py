"""Many processes, and some that die: nothing is lost, nobody overlaps, and the next comes when the lease is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distlock_web import lock
from tests.support.lab import Lab
from tests.support.requirements import require
from tests.support.waiting import eventually
from tests.support.zookeeper_server import leader_of, zookeeper_ensemble, zookeeper_programs

pytestmark = pytest.mark.slow


def test_a_process_that_was_refused_and_ends_leaves_nothing_in_the_line(zookeeper_store: str) -> None:
    """A cron job that gives up. Its node would be the next holder, for as long as its session or its lease lasts."""
    program = "from distlock_web import lock; assert lock('nightly').try_acquire() is None"
    for _ in range(4):  # it is a race between its last request and its end
        with lock("nightly"):
            environment = {**os.environ, "DISTLOCK_URL": zookeeper_store}
            subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)
        lock("nightly").acquire().release()


def test_nobody_overlaps_while_the_leader_dies(tmp_path: Path) -> None:
    require("zookeeper", zookeeper_programs)
    with zookeeper_ensemble() as servers:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        laboratory = Lab(f"zookeeper://{hosts}", tmp_path)
        try:
            options = {"rounds": 40, "expire": 5.0, "section": 0.02, "renew": True}
            workers = laboratory.ready(*[{"mode": mode, **options} for mode in ("threads", "asyncio") * 2])
            for worker in workers:
                worker.go()
            workers[0].saw("wrote", 3)
            leader = leader_of(servers)
            assert leader is not None
            leader.kill()
            eventually(lambda: leader_of([other for other in servers if other is not leader]), "they have another")
            assert [worker.join() for worker in workers] == [0] * 4
        finally:
            laboratory.close()
        assert laboratory.history.violations(counter=laboratory.counter) == []
        assert laboratory.counter >= 4 * 40
