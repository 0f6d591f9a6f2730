"""One process that takes a lock again and again and tells what happens: run with its options, as JSON, in argv[1].

In the section it reads a counter, pauses, and writes it: what a lock is for.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from typing import Any

from distlock_web import BackendUnavailable, Lease, LeaseLost, LockBusy, configure, lock
from distlock_web.backends.redis.port import RedisPort
from distlock_web.core.backend import SHARED, Busy, Claim, Granted
from distlock_web.locks.lease import scope_of
from distlock_web.testing.harness import HARNESSES, Harness
from tests.support.history import Recorder


def main(options: dict[str, Any]) -> None:
    registry = configure({"default": options["store"]})
    harness = HARNESSES[options["mode"]](registry.store("default"))
    say = Recorder(options["actor"], limit=options["limit"])
    _tell_places(say)
    harness.run(_work(harness, say, options))
    registry.close()


async def _work(harness: Harness, say: Recorder, options: dict[str, Any]) -> None:
    say("ready")
    sys.stdin.readline()
    counter = os.open(options["counter"], os.O_RDWR | os.O_CREAT)
    dice = random.Random(options["actor"])
    done = 0
    while done < options["rounds"]:
        await harness.sleep(options["think"] * dice.random())
        the_lock = lock(
            options["key"],
            expire=options["expire"],
            wait=options["wait"],
            renew=options["renew"],
            on_lost="raise",
            limit=options["limit"] if 1 < options["limit"] < SHARED else None,
            shared=options["limit"] == SHARED,
            max_waiters=options.get("max_waiters"),
        )
        lease: Lease | None = None
        say("wanted")
        try:
            async with harness.inside(the_lock) as lease:
                say("acquired", lease.fence)
                if options["hold"]:
                    sys.stdin.readline()
                await _section(harness, say, lease, counter, options["section"])
                say("released")
            done += 1
        except (LockBusy, BackendUnavailable):
            say("gave_up")
        except LeaseLost:
            if lease is None:  # the answer came later than the lease is long
                say("gave_up")
                continue
            say("lost", at=min(hold.deadline for hold in scope_of(lease).holds))
            if options["hold"]:
                break


async def _section(harness: Harness, say: Recorder, lease: Lease, counter: int, seconds: float) -> None:
    lease.raise_if_lost()
    value = int(os.pread(counter, 20, 0) or b"0")
    say("read", value)
    await harness.sleep(seconds)
    lease.raise_if_lost()
    os.pwrite(counter, b"%020d" % (value + 1), 0)
    say("wrote", value + 1)


def _tell_places(say: Recorder) -> None:
    """Say the place that the server gave in its queue: the only word on who came first."""
    acquire = RedisPort.acquire

    async def told(self: RedisPort, claim: Claim, wait: float | None, place: int | None = None) -> Granted | Busy:
        answer = await acquire(self, claim, wait, place)
        if isinstance(answer, Busy) and answer.memo:
            say("joined", answer.memo)
        return answer

    RedisPort.acquire = told  # type: ignore[method-assign]


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(json.loads(sys.argv[1]))
