"""A holder that is stopped past its lease, while a second one works, and then goes on: 0 stale writes in 200 rounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connections

from distlock_web import lock
from tests.support.databases import Database
from tests.support.fenced_tables import Stock, Warehouse

ROOT = Path(__file__).parents[2]
LANES, ROUNDS = 8, 25

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)]


class Holder:
    """``tests/support/programs/fenced_writer.py``, as a process."""

    def __init__(self, key: str, pk: int, database: Database, redis_url: str) -> None:
        environment = {**os.environ, "HOLDER_DATABASE": json.dumps(database.django), "DISTLOCK_URL": redis_url}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.programs.fenced_writer", key, str(pk)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @contextmanager
    def ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.process.kill()
            self.process.communicate()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def one_lane(pk: int, database: Database, redis_url: str) -> list[str]:
    """Rounds on one row: what the first holder said of each of its late writes."""
    key = f"stock:{pk}"
    holder = Holder(key, pk, database, redis_url)
    said = []
    with holder.ended():
        for _ in range(ROUNDS):
            heard = "again"
            while heard.startswith("again"):
                holder.tell("read")
                heard = holder.hear()
            assert heard == "read"
            with holder.stopped():
                with lock(key, expire=30, wait=30) as lease:  # when the stopped one's lease is over, and not before
                    row = Stock.objects.fenced_get(lease, pk=pk)
                    row.count += 1
                    row.fenced_save(lease)
                holder.tell("write")
            said.append(holder.hear())
    connections.close_all()
    return said


def test_a_late_write_is_refused_and_its_transaction_rolled_back(
    tables: Database, redis_store: str, redis_url: str
) -> None:
    Stock.objects.bulk_create(Stock(pk=pk) for pk in range(1, LANES + 1))
    with ThreadPoolExecutor(LANES) as lanes:
        said = list(lanes.map(lambda pk: one_lane(pk, tables, redis_url), range(1, LANES + 1)))
    assert said == [["refused lost"] * ROUNDS] * LANES
    assert set(Stock.objects.values_list("count", flat=True)) == {ROUNDS}
    assert not Warehouse.objects.exists()
