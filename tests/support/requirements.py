"""What a test needs that this machine may not have: it is skipped, or fails where skipping is forbidden."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NoReturn

import pytest

from distlock_web.testing.servers import ServerMissing, redis_program

#: The package of Debian and Ubuntu that brings what a test was skipped for.
PACKAGES = {
    "redis": "redis-server",
    "valkey": "valkey-server",
    "postgres": "postgresql",
    "mariadb": "mariadb-server",
    "pgbouncer": "pgbouncer",
    "zookeeper": "zookeeper",
    "etcd": "etcd-server",
    "chromium": "chromium",
    "openssl": "openssl",
    "compiler": "gcc libc6-dev",
}
_REASON = re.compile(r"Skipped: ([\w.-]+) is missing: ")


def required(name: str) -> bool:
    """Whether ``DISTLOCK_REQUIRE_SERVERS`` (``all``, or names with commas) forbids that this server is missing."""
    asked = os.environ.get("DISTLOCK_REQUIRE_SERVERS", "").replace(" ", "").split(",")
    return "all" in asked or name in asked


def require(name: str, program: Callable[[], object]) -> None:
    """Skip, or fail where ``DISTLOCK_REQUIRE_SERVERS`` names it, unless the server's program is there.

    ``DISTLOCK_REQUIRE_SERVERS=wheels`` is for a run that shows what pip alone brings: it fails if another is there.
    """
    try:
        found = program()
    except ServerMissing as missing:
        without(name, missing)
    path = str(found[0] if isinstance(found, tuple) else found)
    if os.environ.get("DISTLOCK_REQUIRE_SERVERS") == "wheels" and not path.startswith(sys.prefix):
        pytest.fail(f"{name} is not hidden: {path} (DISTLOCK_REQUIRE_SERVERS=wheels)", pytrace=False)


def without(name: str, missing: ServerMissing) -> NoReturn:
    """End the test: this machine has no such server."""
    if required(name):
        pytest.fail(f"{missing} (DISTLOCK_REQUIRE_SERVERS forbids to skip)", pytrace=False)
    pytest.skip(f"{name} is missing: {missing}")


def skipped_for(reasons: Iterable[str]) -> str | None:
    """One line: how many tests were skipped, for what, and how to install that. None: no test was."""
    found = [match[1] for reason in reasons if (match := _REASON.match(reason))]
    if not found:
        return None
    counted = Counter(found).most_common()
    packages = " ".join(PACKAGES[name] for name, _ in counted if name in PACKAGES)
    names = ", ".join(f"{name} ({number})" for name, number in counted)
    line = f"{len(found)} tests were skipped, without {names}."
    return f"{line} On Debian and Ubuntu: apt install {packages}" if packages else line


def require_redis() -> None:
    # A Valkey stands in where no Redis is, but not where a Redis is asked for.
    require("redis", genuine_redis_program if required("redis") else redis_program)


def genuine_redis_program() -> str:
    """The path of a ``redis-server`` that is no Valkey. Raises ``ServerMissing``."""
    found = redis_program()
    if found.endswith("valkey-server"):
        raise ServerMissing("redis-server is missing: there is a Valkey only")
    return found


def compiler_program() -> str:
    """The path of a C compiler. Raises ``ServerMissing``."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise ServerMissing("no C compiler on PATH")
    return found


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
