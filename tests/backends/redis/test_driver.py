"""What we use of redis-py that it does not promise: two names, in one file."""

from __future__ import annotations

import ast
from pathlib import Path

import redis.asyncio as aioredis

import distlock_web.backends.redis as package

PRIVATE = {"_writer", "_close"}
PUBLIC = {"_replace", "_asdict"}  # of named tuples
FILES = sorted(Path(package.__file__).parent.rglob("*.py"))


def private_names_of_others(path: Path) -> set[str]:
    """The attributes with an underscore of anything but ``self`` and ``cls``; dunder names are public."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in PUBLIC
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def test_they_are_these_two_and_in_one_file() -> None:
    found = {path.name: names for path in FILES if (names := private_names_of_others(path))}
    assert found == {"stream.py": PRIVATE}


def test_redis_py_has_them() -> None:
    for connection_class in (aioredis.Connection, aioredis.SSLConnection, aioredis.UnixDomainSocketConnection):
        assert callable(connection_class._close)
    connection = aioredis.Connection(host="127.0.0.1", port=1)
    assert connection._writer is None
