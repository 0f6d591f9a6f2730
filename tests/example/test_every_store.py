"""The flash sale with its locks on every store: nothing but DISTLOCK_URL differs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]

Demo = Callable[..., "subprocess.Popen[str]"]

#: Each has a fixture ``<name>_settings``, in ``tests/support/stores``. Redis alone is what test_demo.py runs on.
STORES = ("sentinel", "cluster", "redlock", "postgres", "mariadb", "sqlite", "zookeeper")


@pytest.mark.parametrize("store", STORES)
def test_the_sale_is_exact(store: str, demo: Demo, request: pytest.FixtureRequest) -> None:
    settings = request.getfixturevalue(f"{store}_settings")
    process = demo(SERVE="0", DISTLOCK_URL=settings["LOCATION"])
    output, errors = process.communicate(timeout=150)
    assert process.returncode == 0, output + errors
    (line,) = (line for line in output.splitlines() if line.startswith("with the lock") and "ms" in line)
    stock, sold, left, oversold, _busy, failed = map(int, line[16:].split()[:6])
    assert (sold, left, oversold, failed) == (stock, 0, 0, 0)
