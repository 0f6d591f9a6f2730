"""For tests: of a project that uses distlock_web, and of a backend or an integration that somebody writes for it.

- For a project's own tests, here: ``hold_lock``, ``lose_lock``, ``expire_lock``, ``store_down``, ``assert_lock_free``;
  ``locks_in_memory`` in place of a server, and ``LocksInMemory``, which does that for ``unittest``.
- ``plugin``: the same for pytest, which loads it by itself where distlock_web is installed; it does nothing unasked.
- ``contract``: what every backend has to pass, with threads and with asyncio. One subclass runs it on a store.
- ``harness``: what a case of the contract is written with; for cases of your own that run in both modes.
- ``fault_injector``: loses requests and answers between the engine and a store, whichever that is.
- ``history``: checks what many processes report of one lock: overlaps, fences that fall, lost updates, overtaking.
- ``storm``: a store among many callers, with faults on the way to it, and what must not have happened.
- ``servers``: a Redis of one's own for a test session.

``plugin``, ``contract`` and ``harness`` need pytest (``pip install "distlock_web[testing]"``).
"""

from .fakes import (
    LocksInMemory,
    assert_lock_free,
    expire_lock,
    hold_lock,
    locks_in_memory,
    lose_lock,
    store_down,
)

__all__ = [
    "LocksInMemory",
    "assert_lock_free",
    "expire_lock",
    "hold_lock",
    "locks_in_memory",
    "lose_lock",
    "store_down",
]
