"""What a test needs that this machine may not have: it is skipped, or fails where skipping is forbidden."""

from __future__ import annotations

import shutil
from collections.abc import Callable

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
