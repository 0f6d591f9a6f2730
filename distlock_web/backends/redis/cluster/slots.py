"""Which slot a lock is in, and the key of that slot's index: a script uses the keys of one slot only."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import product

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

SLOTS = REDIS_CLUSTER_HASH_SLOTS


@lru_cache(maxsize=4096)
def slot_of(name: str) -> int:
    """The slot of a lock's name, and so of all its keys: it has no braces, and those of its queue enclose it."""
    return int(key_slot(name.encode()))


@lru_cache(maxsize=4096)
def index_of(prefix: str, slot: int) -> str:
    """The key of the index of the locks in this slot."""
    return f"{indexes_of(prefix)}{{{tags()[slot]}}}"


def indexes_of(prefix: str) -> str:
    """What the keys of all indexes begin with; a tag in braces follows."""
    return f"{prefix}~held:"


@cache
def tags() -> list[str]:
    """For each slot four letters that lie in it. CRC16 is linear, and these 14 free bits reach each slot once."""
    tags = [""] * SLOTS
    for letters in product("@ABC", *["@ABCDEFGHIJKLMNO"] * 3):
        tag = "".join(letters)
        tags[key_slot(tag.encode())] = tag
    return tags
