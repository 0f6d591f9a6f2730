"""Which slot a lock is in, and the key of that slot's index: a script uses the keys of one slot only."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import product

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from ....core.runtime import Token
from ..scripts.calls import PackedKeys, lock_keys

SLOTS = REDIS_CLUSTER_HASH_SLOTS


@lru_cache(maxsize=4096)
def slot_of(name: str) -> int:
    """The slot of a lock's name, and so of all its keys: it has no braces, and those of its queue enclose it."""
    return int(key_slot(name.encode()))


class SlotKeys:
    """The locks of each slot have an index of their own."""

    def __init__(self, prefix: str) -> None:
        #: What the keys of all indexes begin with, of what is held and of what is done; a tag in braces follows.
        self.indexes, self.done = f"{prefix}~held:", f"{prefix}~done:"

    def index_in(self, slot: int) -> str:
        return f"{self.indexes}{{{tags()[slot]}}}"

    def index_of(self, name: str) -> str:
        return self.index_in(slot_of(name))

    def of(self, name: str, joining: Token | None = None) -> PackedKeys:
        # With the line of this store: a key that came to be at the other end of a move would stop the move.
        return lock_keys(name, self.index_of(name), joining.store if joining else "")

    def done_in(self, slot: int) -> str:
        return f"{self.done}{{{tags()[slot]}}}"

    def done_of(self, name: str) -> str:
        return self.done_in(slot_of(name))


@cache
def tags() -> list[str]:
    """For each slot four letters that lie in it. CRC16 is linear, and these 14 free bits reach each slot once."""
    tags = [""] * SLOTS
    for letters in product("@ABC", *["@ABCDEFGHIJKLMNO"] * 3):
        tag = "".join(letters)
        tags[key_slot(tag.encode())] = tag
    return tags
