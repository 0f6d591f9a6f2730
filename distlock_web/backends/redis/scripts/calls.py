"""What a script is called with, and how that is written on the wire (RESP 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

from ....core.runtime import Token


def bulk(value: str | bytes | int) -> bytes:
    """One argument as Redis reads it (a bulk string)."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def command(*words: str | bytes | int) -> bytes:
    """A whole command."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


class Script:
    """One Lua script. It is called by its SHA-1, and by its source where the server does not know it (any more)."""

    __slots__ = ("_by_sha", "_by_source", "gives", "source")

    def __init__(self, source: bytes, gives: Callable[[Any], bool] | None = None) -> None:
        self.source = source
        self.gives = gives  #: whether this answer leaves a lock to a caller, so that ``min_replicas`` have to have it
        sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self._by_sha = bulk(b"EVALSHA") + bulk(sha)
        self._by_source = bulk(b"EVAL") + bulk(source)

    def call(self, keys: PackedKeys, args: tuple[str | int, ...], *, by_source: bool = False) -> bytes:
        """The whole call, as it is written on the wire."""
        body = self._by_source if by_source else self._by_sha
        written = ""
        for arg in args:  # a text that grows: quicker than a list, a format of all, or map()
            text = str(arg)
            written += f"${len(text)}\r\n{text}\r\n"
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


class Keys(Protocol):
    """Which keys the scripts of a store are called with."""

    def index_of(self, name: str) -> str:
        """The key of the index that lists this lock."""

    def of(self, name: str, joining: Token | None = None) -> PackedKeys:
        """Of a script on one lock; with those that it may make where this token joins the queue."""

    def done_of(self, name: str) -> str:
        """The key of the index that lists this lock when it is done."""


class OneIndex:
    """All locks are listed in one index."""

    def __init__(self, prefix: str) -> None:
        self.index = f"{prefix}~held"  #: no lock's name has a '~' there: keys.py escapes it
        self.done = f"{prefix}~done"

    def index_of(self, name: str) -> str:
        return self.index

    def of(self, name: str, joining: Token | None = None) -> PackedKeys:
        return lock_keys(name, self.index)

    def done_of(self, name: str) -> str:
        return self.done
