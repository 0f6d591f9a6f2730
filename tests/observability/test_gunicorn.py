"""The metrics of two workers of a gunicorn, scraped over HTTP and read by the parser of a Prometheus client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from distlock_web.testing.servers import free_port
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

Get = Callable[[str], str]

#: As docs/observability.md has it.
CONF = """
from prometheus_client import multiprocess

def child_exit(server, worker):
    multiprocess.mark_process_dead(worker.pid)
"""


@pytest.fixture
def get(redis_url: str, tmp_path: Path) -> Iterator[Get]:
    port, log, shared = free_port(), tmp_path / "log", tmp_path / "metrics"
    shared.mkdir()
    (tmp_path / "conf.py").write_text(CONF)
    arguments = ["--bind", f"127.0.0.1:{port}", "--workers", "2", "--config", str(tmp_path / "conf.py"), "--preload"]
    with log.open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "tests.support.sites.metrics_flask:app", *arguments],
            cwd=ROOT,
            env={
                **os.environ, "METRICS_REDIS": redis_url,
                "PROMETHEUS_MULTIPROC_DIR": str(shared),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def fetch(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return str(response.read().decode())

    workers: set[str] = set()

    def both_have_served() -> bool:
        assert server.poll() is None, log.read_text()
        with suppress(OSError):
            workers.add(fetch("/pay/0"))
        return len(workers) == 2

    try:
        eventually(both_have_served, "both workers have served")
        # prometheus_client's reader fails at a file that another worker is just making.
        eventually(lambda: settled(shared, workers), "both workers have all of their files")
        yield fetch
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE)
        assert "Traceback" not in log.read_text()


def settled(folder: Path, workers: set[str]) -> bool:
    """Whether each has the same files, none of them empty."""
    kinds = [{path.name.replace(worker, "") for path in folder.glob(f"*_{worker}.db")} for worker in workers]
    return bool(kinds[0]) and kinds[0] == kinds[1] and all(path.stat().st_size for path in folder.iterdir())


def samples(get: Get, name: str) -> dict[str, float]:
    """By template."""
    families = text_string_to_metric_families(get("/metrics"))
    found = [sample for family in families for sample in family.samples if sample.name == name]
    assert all(set(sample.labels) == {"store", "template"} for sample in found), found
    return {sample.labels["template"]: sample.value for sample in found}


def test_the_workers_are_one_in_the_metrics(get: Get) -> None:
    before = samples(get, "distlock_acquired_total")["order:{order}"]
    workers: set[str] = set()
    count = 0

    def both_have_served() -> bool:
        nonlocal count
        workers.add(get("/pay/7"))
        count += 1
        return len(workers) == 2

    eventually(both_have_served, "both workers have served")

    def all_counted() -> bool:  # a worker tells its own events, a moment later
        return samples(get, "distlock_acquired_total")["order:{order}"] == before + count

    eventually(all_counted, "both workers' locks are in what either of them shows")
    assert samples(get, "distlock_held")["order:{order}"] == 0
