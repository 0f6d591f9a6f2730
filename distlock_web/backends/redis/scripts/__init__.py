"""The Lua scripts, read from their files once, and how a call of one is written on the wire."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from ..transport.resp import bulk


def _read(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()


class Script:
    """One Lua script. It is called by its SHA-1, and by its source where the server does not know it (any more)."""

    __slots__ = ("_by_sha", "_by_source")

    def __init__(self, name: str, *, of_one_lock: bool = True) -> None:
        source = _read(name)
        if of_one_lock:
            source = _read("_lock") + source.replace(b"-- include: _queue\n", _read("_queue"))
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self._by_sha = bulk(b"EVALSHA") + bulk(sha)
        self._by_source = bulk(b"EVAL") + bulk(source)

    def call(self, keys: PackedKeys, args: tuple[str | int, ...], *, by_source: bool = False) -> bytes:
        """The whole call. Arguments are ASCII (tokens, numbers, JSON): their lengths are those of their text."""
        body = self._by_source if by_source else self._by_sha
        packed = "".join([f"${len(text)}\r\n{text}\r\n" for text in map(str, args)]).encode("ascii")
        return b"*%d\r\n%b%b%b" % (3 + keys.number + len(args), body, keys.packed, packed)


class PackedKeys(NamedTuple):
    """The keys of a call, packed."""

    number: int
    packed: bytes  #: their number and themselves


def pack_keys(*names: str) -> PackedKeys:
    return PackedKeys(len(names), bulk(len(names)) + b"".join(map(bulk, names)))


def queue_of(name: str) -> str:
    """The key of a lock's queue. The braces keep all keys of one lock in one cluster slot."""
    return f"{{{name}}}:queue"


@lru_cache(maxsize=4096)
def lock_keys(name: str, index: str) -> PackedKeys:
    """The keys of one lock, in the order of ``_lock.lua``. Packed once: what is locked often is sent often."""
    return pack_keys(name, queue_of(name), index)


def extend_keys(names: Iterable[str], index: str) -> PackedKeys:
    return pack_keys(index, *names)


ACQUIRE = Script("acquire")
RELEASE = Script("release")
CANCEL = Script("cancel")
REVOKE = Script("revoke")
DETACH = Script("detach")
ATTACH = Script("attach")
EXTEND = Script("extend", of_one_lock=False)
INSPECT = Script("inspect", of_one_lock=False)
NAMES = Script("names", of_one_lock=False)
WAITERS = Script("waiters", of_one_lock=False)
