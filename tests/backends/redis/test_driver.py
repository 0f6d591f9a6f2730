"""What we use of redis-py that it does not promise: private names of redis-py are in one file."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis

import distlock_web.backends.redis as single
import distlock_web.backends.redlock as several
from distlock_web.backends.redis.transport.address import check_release

FILES = [path for folder in (*single.__path__, *several.__path__) for path in sorted(Path(folder).rglob("*.py"))]
CONNECTIONS: tuple[Any, Any] = (redis.Connection(), aioredis.Connection())  # type: ignore[no-untyped-call]


def private_names_of_redis_py(path: Path) -> set[str]:
    """The attributes with an underscore that its connections have, of anything but ``self``."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and any(hasattr(connection, node.attr) for connection in CONNECTIONS)
    }


def test_they_are_in_one_file() -> None:
    found = {path.name: names for path in FILES if (names := private_names_of_redis_py(path))}
    assert found == {"driver.py": {"_sock", "_writer"}}


@pytest.mark.parametrize("version", ["4.6.0", "5.0", "5.0.0", "5.0.0rc2"])
def test_a_release_that_is_too_old_is_refused_as_the_message_says(version: str) -> None:
    """5.0.0 was let pass."""
    with pytest.raises(ImportError, match=f"has to be 5.0.1 or newer, and is {version}"):
        check_release(version)


@pytest.mark.parametrize("version", [redis.__version__, "5.0.1", "5.1.0b1", "10.0"])
def test_a_release_that_is_new_enough_is_taken(version: str) -> None:
    check_release(version)
