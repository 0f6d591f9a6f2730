"""Records what a version of this library leaves in a store, for tests of later ones.

    git archive f11b646 distlock_web | tar x -C /tmp/then
    PYTHONPATH=/tmp/then:. python -P -m tests.support.upgrading.record redis redis://127.0.0.1:6379/0 >redis.json

The store has to be empty. It leaves: locks that are held, by one and by several; a queue; a lock that is detached; a
cooldown; runs of ``once``, and what they leave; a lock that was released by force; and one that is free.
"""

from __future__ import annotations

import contextvars
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from distlock_web import configure, lock, once
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive

from . import subjects
from .stored import now_us, store_at

#: Seconds: longer than a test takes.
LONG = 3600.0


def alone(work: Callable[..., Any], *args: Any) -> Any:
    """In a call chain of its own, as somebody else."""
    return contextvars.Context().run(work, *args)


def acquire(key: str, **options: Any) -> Any:
    return alone(lambda: lock(key, **{"expire": LONG, **options}).acquire())


def beside(work: Callable[[], Any]) -> None:
    threading.Thread(target=work, daemon=True).start()


def waiters(key: str) -> int:
    store = registry().store("default")
    return sum(row.waiters for row in drive(store.backend.sync_port().inspect([f"disLock:{key}"])))


def until(true: Callable[[], bool]) -> None:
    begun = time.monotonic()
    while not true():
        if time.monotonic() > begun + 30:
            raise TimeoutError
        time.sleep(0.02)


def main(kind: str, location: str) -> None:
    settings = {"LOCATION": location}
    configure({"default": settings})
    can = registry().store("default").backend.capabilities
    facts: dict[str, Any] = {"kind": kind}

    facts["held"] = acquire("held").fence
    acquire("brief", expire=2)
    with lock("cooldown", hold_at_least=LONG):
        pass
    for _ in range(3):
        with lock("fenced") as lease:
            facts["fenced"] = lease.fence
    acquire("queued")
    beside(lambda: acquire("queued", wait=LONG))
    beside(lambda: acquire("queued", wait=LONG))
    until(lambda: waiters("queued") == 2)
    forced = acquire("forced").fence
    assert drive(registry().store("default").backend.sync_port().revoke("disLock:forced", forced)), "it was held"
    if can.transfer:
        facts["ticket"] = acquire("detached").detach(LONG)
        handed = acquire("handed")
        # A store that cannot ask who listens hands it to this one, which will be gone: for its lease.
        beside(lambda: acquire("handed", wait=LONG, expire=2))
        until(lambda: waiters("handed") == 1)
        facts["ticket with a queue"] = handed.detach(LONG)
    if can.sharing:
        for _ in range(2):
            acquire("limited", limit=2)
        acquire("read", shared=True)
    if can.records:
        running = threading.Event()

        @once(key="running", keep=LONG, expire=LONG)
        def run() -> None:
            running.set()
            time.sleep(LONG)

        beside(lambda: alone(run))
        running.wait()
        facts["function"] = alone(subjects.function)
        facts["views"] = {view: alone(subjects.ask, view, settings) for view in subjects.VIEWS}
    json.dump({"at": now_us(), "facts": facts, "stored": store_at(kind, location).dump()}, sys.stdout, indent=1)
    sys.stdout.flush()
    os._exit(0)  # without a release


if __name__ == "__main__":
    main(*sys.argv[1:])
