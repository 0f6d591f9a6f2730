"""An app whose workers want to lead: ``wsgi``, and ``asgi`` with its lifespan. They tell Redis what they do.

What the environment says: ``DISTLOCK_URL``; the seconds of the leader's lease in ``LEASE``, and in ``GRACE`` those in
which even a busy machine has forked.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import redis

from distlock_web import leader
from distlock_web.core.runtime import now
from distlock_web.locks import leader as module

LEASE = float(os.environ["LEASE"])
module.GRACE = float(os.environ["GRACE"])


def tell(kind: str, **more: object) -> None:
    with redis.Redis.from_url(os.environ["DISTLOCK_URL"]) as told:
        told.rpush("told", json.dumps({"pid": os.getpid(), "kind": kind, "at": now(), **more}))


def start() -> None:
    # First: a test that has read the word stops this process anywhere after it.
    threading.Thread(target=notice_sleep, args=(now(),), daemon=True).start()
    tell("start", leads=candidate.is_leader())


def stop() -> None:
    tell("stop", leads=candidate.is_leader())
    tell("stopped")


def notice_sleep(before: float) -> None:
    """What this process believes first when it wakes after its lease."""
    while True:
        time.sleep(0.02)
        leads = candidate.is_leader()
        if now() - before > LEASE:
            tell("woke", leads=leads)
            return
        before = now()


candidate = leader("scheduler", start=start, stop=stop, expire=LEASE)


def wsgi(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


async def asgi(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
    while scope["type"] == "lifespan":
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await asyncio.to_thread(candidate.close)
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"hello"})
