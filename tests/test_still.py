"""``.ci/still``: CI looks again at a test that failed while the machine stood still, and at no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.waiting import eventually

STILL = Path(__file__).parent.parent / ".ci" / "still"

pytestmark = pytest.mark.skipif(not STILL.exists(), reason="not in a source distribution")


def test_it_writes_when_it_had_no_turn(tmp_path: Path) -> None:
    file = tmp_path / "beats"
    before = time.time()
    process = subprocess.Popen([sys.executable, STILL, "beat", file])
    try:
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        eventually(file.exists, "it has noticed")
        eventually(lambda: file.read_text("ascii").endswith("\n"), "and written it")
    finally:
        process.kill()
        process.wait()
    first, last = map(float, file.read_text("ascii").splitlines()[-1].split())
    assert before < first < last < time.time()
    assert last - first > 1.0


def test_those_that_failed_over_such_a_time(tmp_path: Path) -> None:
    beats, failed = tmp_path / "beats", tmp_path / "failed"
    run: list[str | Path] = [sys.executable, STILL, "failed", beats, failed]
    failed.write_text("10.0 20.0 tests/a.py::over[x y]\n", "utf-8")
    assert subprocess.check_output(run, text=True).split() == [], "it never stood still"
    beats.write_text("12.0 15.5\n100.0 103.0\n", "ascii")
    failed.write_text(
        "10.0 20.0 tests/a.py::over[x y]\n"
        "10.0 11.9 tests/a.py::before\n"
        "15.6 99.9 tests/a.py::between\n"
        "101.0 102.0 tests/a.py::inside\n"
        "12.5 13.0 tests/a.py::twice\n"
        "50.0 51.0 tests/a.py::twice\n",
        "utf-8",
    )
    assert subprocess.check_output(run, text=True).splitlines() == ["tests/a.py::over[x y]", "tests/a.py::inside"]
