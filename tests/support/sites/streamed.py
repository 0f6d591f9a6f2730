"""The body that the streaming sites send; what it has seen is told in Redis, under ``seen``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import redis

from distlock_web import current_lease, current_request_id, lock

CHUNK = os.urandom(65536)  # which cannot be compressed
KEY = "export"

_seen = redis.Redis.from_url(os.environ.get("STREAMING_SEEN", "redis://127.0.0.1:1/0"))


def tell(what: str) -> None:
    """What happened, for which request, and inside of how many blocks under the lock."""
    lease = current_lease()
    _seen.rpush("seen", f"{what} {current_request_id()} {lease.depth if lease else 0}")


def chunks(count: int) -> Iterator[bytes]:
    try:
        with lock(KEY):  # enters the lock of the view: an unrelated caller would be told that it is busy
            tell("begun")
        for _ in range(count):
            yield CHUNK
        tell("complete")
    finally:
        tell("ended")


async def achunks(count: int) -> AsyncIterator[bytes]:
    try:
        async with lock(KEY):
            tell("begun")
        for _ in range(count):
            yield CHUNK
            await asyncio.sleep(0)
        tell("complete")
    finally:
        await asyncio.sleep(0)
        tell("ended")
