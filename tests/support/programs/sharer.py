"""A process that takes a shared or limited lock again and again, and counts who is inside with it."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any

import redis

from distlock_web import configure, lock

options = json.loads(sys.argv[1])
configure({"default": options["settings"]})
client = redis.Redis.from_url(options["url"], decode_responses=True)

#: Enter, and note whoever must not be inside at the same time. One script: what it sees is one moment. Those that were
#: killed are in the set of the dead, and not inside.
ENTER = client.register_script("""
redis.call('HSET', 'inside', ARGV[3], ARGV[1])
local readers, writers, inside = 0, 0, redis.call('HGETALL', 'inside')
for i = 1, #inside, 2 do
  if redis.call('SISMEMBER', 'dead', string.match(inside[i], '^%d+')) == 0 then
    if inside[i + 1] == 'reader' then readers = readers + 1 else writers = writers + 1 end
  end
end
if writers > 1 or (writers > 0 and readers > 0) or readers > tonumber(ARGV[2]) then
  redis.call('RPUSH', 'violations', 'readers ' .. readers .. ' writers ' .. writers)
end
if readers > tonumber(redis.call('GET', 'most') or 0) then
  local time = redis.call('TIME')
  redis.call('SET', 'most', readers)
  redis.call('SET', 'first with ' .. readers, time[1] .. '.' .. string.format('%06d', time[2]))
end
""")


def work() -> None:
    done, me = 0, f"{os.getpid()}:{threading.get_ident()}"
    waits: list[tuple[str, float]] = []
    until = time.monotonic() + options["seconds"]
    while time.monotonic() < until:
        writer = random.random() < options["writers"]
        kind: dict[str, Any] = {} if writer else options["kind"]
        asked = time.monotonic()
        with lock("shared", expire=options["expire"], wait=None, **kind) as lease:
            waits.append(("writer" if writer else "reader", time.monotonic() - asked))
            role = "writer" if writer else "reader"
            ENTER(args=[role, options["most"], me])
            time.sleep(options["section"])
            client.hdel("inside", me)
            lease.raise_if_lost()
        done += 1
    client.rpush("done", done)
    client.rpush("waits", *[json.dumps(wait) for wait in waits])


with lock(f"warm:{os.getpid()}", limit=2):  # a driver is loaded at its first use
    pass
threads = [threading.Thread(target=work) for _ in range(options["threads"])]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
