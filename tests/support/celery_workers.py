"""Real workers of Celery, in processes of their own, one for each kind of pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from .programs import celery_shop as shop
from .waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
POOLS = ("prefork", "threads", "gevent")


class CeleryWorker:
    """A worker that reads the queue of its pool's name."""

    def __init__(self, pool: str, url: str, folder: Path) -> None:
        self.log = folder / f"{pool}.log"
        env = {**os.environ, "CELERY_SHOP_REDIS": url}
        env.pop("DJANGO_SETTINGS_MODULE", None)
        command = [sys.executable, "-m", "celery", "--app", "tests.support.programs.celery_shop", "worker"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *command,
                    "--pool",
                    pool,
                    "--concurrency",
                    "3",
                    "--queues",
                    pool,
                    "--hostname",
                    f"{pool}@test",
                    *quiet,
                ],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        eventually(self._is_ready, f"the worker {pool} is ready")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return " ready." in self.log.read_text()

    def close(self) -> None:
        """It ends what it does. ``SIGTERM`` has been sent."""
        try:
            self.process.wait(PATIENCE / 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class CeleryWorkers:
    """One Redis for all; a worker starts when a test asks for its pool."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._workers: dict[str, CeleryWorker] = {}

    def start(self, pool: str) -> CeleryWorker:
        if pool not in self._workers:
            self._workers[pool] = CeleryWorker(pool, self.url, self._folder)
        return self._workers[pool]

    def said(self) -> list[str]:
        """What the runs have written, in order."""
        with shop.notes() as client:
            return client.lrange("said", 0, -1)

    def go(self, name: str) -> None:
        with shop.notes() as client:
            client.rpush(f"go:{name}", "go")

    def close(self) -> None:
        for worker in self._workers.values():
            worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers.values():
            worker.close()
