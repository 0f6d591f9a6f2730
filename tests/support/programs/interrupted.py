"""A main thread that a signal interrupts, anywhere in a lock, thousands of times, as a worker's time limit does.

Run with the store's URL, the seconds to go on, the number of other threads that contend meanwhile, and a seed. Prints a
JSON object of what was found in the end.
"""

from __future__ import annotations

import contextvars
import gc
import json
import logging
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import redis

from distlock_web import configure, lock
from distlock_web.core.registry import registry
from distlock_web.core.runtime import now

EXPIRE = 3.0
#: Seconds: longer than the time-out of an answer, and shorter than a lease.
GIVEN_BACK = 2.0


class Limit(BaseException):
    """The time limit of a worker."""


class Interrupter:
    """Interrupts the main thread once in each run, at a random moment within so many seconds, or not at all."""

    def __init__(self, dice: random.Random, within: float) -> None:
        self._dice = dice
        self._within = within
        self._armed = False
        self.hits = 0
        self.where: tuple[str, ...] = ()
        signal.signal(signal.SIGALRM, self._interrupt)

    def run(self, work: Callable[[], None]) -> None:
        self.where = ()
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._dice.random() * self._within + 1e-6)
            work()
            self._armed = False
        except Limit:
            pass
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            self.hits += 1
            self.where = places(frame)
            raise Limit


def places(frame: FrameType | None) -> tuple[str, ...]:
    """The innermost frames, outside of the standard library last."""
    found: list[str] = []
    while frame is not None and len(found) < 3:
        found.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)


class Contender(threading.Thread):
    """Takes one key again and again; what takes it longer than a lease is found."""

    def __init__(self, key: str) -> None:
        super().__init__(daemon=True)
        self.key = key
        self.longest = 0.0
        self.errors: list[str] = []
        self.sections = 0
        self.over = False

    def run(self) -> None:
        while not self.over:
            begun = now()
            try:
                with contextvars.Context().run(lock(self.key, expire=EXPIRE, wait=30).acquire):
                    self.longest = max(self.longest, now() - begun)
                    self.sections += 1
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            time.sleep(0.0005)


def once(keys: list[str], wait: float) -> None:
    with lock(keys, expire=EXPIRE, wait=wait):
        pass


def is_held(client: redis.Redis, key: str) -> bool:
    """Whether somebody holds the lock; what was given back may be remembered for a while."""
    value = str(client.get(f"disLock:{key}") or "- released")
    return value.split(" ")[1] not in ("released", "revoked")


def is_left(client: redis.Redis, key: str) -> bool:
    """Whether it is held by nobody. What its undo went past is given back when an answer would have come."""
    until = now() + GIVEN_BACK
    while is_held(client, key):
        if now() > until:
            return True
        time.sleep(0.01)
    return False


def main(url: str, seconds: float, contenders: int, seed: int) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    configure({"default": {"LOCATION": url, "OPTIONS": {"max_connections": 20}}})
    client = redis.Redis.from_url(url, decode_responses=True)
    dice = random.Random(seed)
    names = ["a", "b"]
    once(names, 0)
    others = [Contender(names[number % 2]) for number in range(contenders)]
    for other in others:
        other.start()
    interrupter = Interrupter(dice, 0.004 if contenders else 0.0006)
    rounds, left, errors = 0, Counter[str](), []
    until = now() + seconds
    while now() < until:
        rounds += 1
        keys = dice.choice([["a"], ["b"], names]) if contenders else ["a"]
        try:
            interrupter.run(partial(contextvars.Context().run, once, keys, 5.0 if contenders else 0.0))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        if not contenders and is_left(client, "a"):
            left[" < ".join(interrupter.where)] += 1
            client.delete("disLock:a")
    for other in others:
        other.over = True
    for other in others:
        other.join(20)
    gc.collect()
    backend: Any = registry().store("default").backend
    pool, listener = backend.server.pool, backend.server.listener
    time.sleep(EXPIRE + 0.5)  # what was left behind has ended
    found = {
        "rounds": rounds,
        "hits": interrupter.hits,
        "left": dict(left),
        "errors": errors[:5],
        "hanging": [other.key for other in others if other.is_alive()],
        "contenders' errors": [error for other in others for error in other.errors][:5],
        "longest": max([other.longest for other in others], default=0.0),
        "sections": sum(other.sections for other in others),
        "lost slots": pool.in_use,
        "waiting for a connection": len(pool.waiting),
        "waiters": len(listener.waiters),
        "held": [name for name in names if is_held(client, name)],
    }
    with lock(names, expire=EXPIRE, wait=0):  # and all is well
        pass
    registry().close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))), flush=True)
