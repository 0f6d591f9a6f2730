"""The Lua scripts, read from their files once, and how commands are written on the wire (RESP 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias


def bulk(value: str | bytes | int) -> bytes:
    """One argument as Redis reads it (a bulk string)."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def command(*words: str | bytes | int) -> bytes:
    """A whole command."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


def _read(name: str) -> bytes:
    return (files(__package__) / f"{name}.lua").read_bytes()


class Script:
    """One Lua script. It is called by its SHA-1, and by its source where the server does not know it (any more)."""

    __slots__ = ("_by_sha", "_by_source", "gives", "source")

    def __init__(self, source: bytes, gives: Callable[[Any], bool] | None = None) -> None:
        self.source = source
        self.gives = gives  #: whether this answer leaves a lock to somebody, so that ``min_replicas`` have to have it
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self._by_sha = bulk(b"EVALSHA") + bulk(sha)
        self._by_source = bulk(b"EVAL") + bulk(source)

    def call(self, keys: PackedKeys, args: tuple[str | int, ...], *, by_source: bool = False) -> bytes:
        """The whole call, as it is written on the wire."""
        body = self._by_source if by_source else self._by_sha
        packed = []
        for text in map(str, args):  # no comprehension: before Python 3.12 that is a call
            packed.append(f"${len(text)}\r\n{text}\r\n")
        written = "".join(packed)
        # Tokens, numbers and JSON are ASCII, and as long as their text; a prefix may be longer.
        values = written.encode() if written.isascii() else b"".join(map(bulk, args))
        return b"*%d\r\n%b%b%b" % (3 + keys.number + len(args), body, keys.packed, values)


class PackedKeys(NamedTuple):
    """The keys of a call, packed."""

    number: int
    packed: bytes  #: their number and themselves


#: What one script is called with, out of many calls.
Call: TypeAlias = tuple[PackedKeys, tuple[str | int, ...]]


def pack_keys(*names: str) -> PackedKeys:
    return PackedKeys(len(names), bulk(len(names)) + b"".join(map(bulk, names)))


def queue_of(name: str) -> str:
    """The key of a lock's queue. The braces keep all keys of one lock in one cluster slot."""
    return f"{{{name}}}:queue"


@lru_cache(maxsize=4096)
def lock_keys(name: str, index: str, ident: str = "") -> PackedKeys:
    """The keys of one lock, in the order of ``_lock.lua``. Packed once: what is locked often is sent often.

    ``ident``: with the line of that store. A cluster has to know each key that a script may make, for a slot may be on
    the move.
    """
    queue = queue_of(name)
    return pack_keys(name, queue, index, f"{queue}:{ident}") if ident else pack_keys(name, queue, index)


def done_keys(name: str, index: str, done: str) -> PackedKeys:
    """The same, and the index of what is done."""
    return pack_keys(name, queue_of(name), index, done)


def extend_keys(names: Iterable[str], index: str) -> PackedKeys:
    return pack_keys(index, *names)


def _of_one_lock(name: str, gives: Callable[[Any], bool] | None = None) -> Script:
    source = _read("_lock") + _read(name)
    for include in ("_queue", "_state", "_sharing", "_join"):
        source = source.replace(b"-- include: %b\n" % include.encode(), _read(include))
    return Script(source, gives)


def _gives(answer: Any) -> bool:
    fence = answer[0] if type(answer) is list else answer
    return type(fence) is int and fence > 0


def _keeps(answer: Any) -> bool:
    """What it leaves, a failover must not forget: a ticket, a record."""
    return type(answer) is int and answer == 0


def _extends(answer: Any) -> bool:
    return type(answer) is list and 0 in answer


ACQUIRE = _of_one_lock("acquire", _gives)
RELEASE = _of_one_lock("release")
FINISH = _of_one_lock("finish", _keeps)
CANCEL = _of_one_lock("cancel")
REVOKE = _of_one_lock("revoke")
DETACH = _of_one_lock("detach", _keeps)
ATTACH = _of_one_lock("attach", _gives)
EXTEND = Script(_read("extend"), _extends)
INSPECT = Script(_read("inspect"))
NAMES = Script(_read("names"))
WAITERS = Script(_read("waiters"))
INDEXED = Script(_read("indexed"))
DONE = Script(_read("done"))
