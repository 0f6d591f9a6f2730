"""The example's own tests: its view without the lock has a race, which is found, and the one with the lock has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_examples_tests_find_its_race(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHOP_", "DISTLOCK_URL"))}
    environment.update(SHOP_DATABASE=str(tmp_path / "shop.sqlite3"), SHOP_PAYMENT_SECONDS="0")
    command = [sys.executable, "-m", "pytest", "--ds", "example_project.shop_django.settings", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-n", "0", "-q", "-rP", "example_project/shop_django/tests.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "left=0, sold=2. One after the other: (201, 410), left=0, sold=1" in done.stdout
    assert "views.py:" in done.stdout
