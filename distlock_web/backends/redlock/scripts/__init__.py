"""The Lua scripts of a node, read from their files once."""

from __future__ import annotations

from importlib.resources import files

from ...redis.scripts.calls import Script


def _read(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()


def _script(name: str) -> Script:
    return Script(_read("_node") + _read(name))


VOTE = _script("vote")
RELEASE = _script("release")
EXTEND = _script("extend")
REVOKE = _script("revoke")
FOUND = _script("found")
INSPECT = Script(_read("inspect"))
