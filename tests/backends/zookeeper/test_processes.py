"""Many processes, and some that die: nothing is lost, nobody overlaps, and the next comes when the lease is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lab import Lab
from tests.support.requirements import require
from tests.support.waiting import eventually
from tests.support.zookeeper_server import leader_of, zookeeper_ensemble, zookeeper_programs

pytestmark = pytest.mark.slow


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
