"""The example project as its users run it: as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what would lead the demo elsewhere."""
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("SHOP_", "DISTLOCK_URL", "SERVE"))
    }
    return {**ours, "PYTHONUNBUFFERED": "1", **changes}


@pytest.fixture
def demo() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the demo; it is stopped at the end of the test, if the test did not."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **changes: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "example_project.demo", *arguments],
            cwd=ROOT,
            env=environment(**changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
