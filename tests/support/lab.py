"""Worker processes that contend for one lock, and the history of what they did."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .history import History
from .processes import Worker
from .redis_lock import KEY

WORKER = "tests.support.programs.worker"


class Lab:
    """Starts workers, and checks in the end what they did."""

    def __init__(self, store: str | Mapping[str, Any], folder: Path) -> None:
        #: One entry of DISTLOCK, of the same store for all.
        self.store = {"LOCATION": store} if isinstance(store, str) else dict(store)
        self.history = History()
        self.workers: list[Worker] = []
        self._counter = folder / "counter"

    def start(self, **options: Any) -> Worker:
        """One worker, contending when this returns. See worker.py for what the options do."""
        (worker,) = self.ready(options)
        worker.go()
        return worker

    def ready(self, *options: dict[str, Any]) -> list[Worker]:
        """Several workers that have started, connected to nothing yet, and begin with ``go()``.

        A process takes its time to start: no lease that has begun should have to wait for that.
        """
        workers = [self._spawn(**given) for given in options]
        for worker in workers:
            worker.saw("ready")
        return workers

    def _spawn(self, **options: Any) -> Worker:
        given = {
            "actor": f"worker-{len(self.workers)}", "store": self.store, "key": KEY, "counter": str(self._counter),
            "mode": "threads", "expire": 5.0, "wait": 60.0, "renew": False, "rounds": 1, "section": 0.0,
            "think": 0.0, "hold": False, "limit": 1, **options,
        }  # fmt: skip
        worker = Worker(given["actor"], [sys.executable, "-m", WORKER, json.dumps(given)], self.history)
        self.workers.append(worker)
        return worker

    @property
    def counter(self) -> int:
        """What all sections have counted up."""
        return int(self._counter.read_bytes() or b"0") if self._counter.exists() else 0

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
