"""Run by test_runtimes.py: 50 event loops, one after the other, each takes and waits; then what is left is counted."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time

import redis

from distlock_web import configure, lock
from tests.support.renewals import renewed_now

# In development mode it warns of a turn of the loop that takes a tenth of a second: a busy machine.
logging.getLogger("asyncio").setLevel("ERROR")


async def holder(held: asyncio.Event) -> None:
    async with lock("lab", expire=600):
        held.set()
        await asyncio.sleep(0.005)


async def view() -> None:
    held = asyncio.Event()
    holding = asyncio.create_task(holder(held))
    await held.wait()
    async with lock("lab", expire=600, wait=20, renew=True):
        pass
    await holding


def connections(client: redis.Redis) -> int:
    return len(client.client_list())


client = redis.Redis.from_url(sys.argv[1])
registry = configure({"default": {"LOCATION": sys.argv[1]}})
with lock("renewed", expire=60, renew=True) as lease:
    renewed_now(lease)  # there is a connection for renewals
asyncio.run(view())
threads, before = threading.active_count(), connections(client)
for _ in range(49):
    asyncio.run(view())
gc.collect()
until = time.monotonic() + 30
while connections(client) > before and time.monotonic() < until:
    time.sleep(0.01)
assert connections(client) <= before, client.client_list()
assert threading.active_count() <= threads, threading.enumerate()
registry.close()
until = time.monotonic() + 30
while connections(client) > 1 and time.monotonic() < until:
    time.sleep(0.01)
assert connections(client) == 1, client.client_list()
client.close()
print("50 loops, no connection and no thread left behind")
