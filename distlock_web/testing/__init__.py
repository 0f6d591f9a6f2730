"""For tests of projects that use distlock_web, and of backends and integrations for it.

- For a project's tests, in this module: ``hold_lock``, ``lose_lock``, ``expire_lock``, ``store_down``,
  ``assert_lock_free``; ``locks_in_memory`` in place of a server, and ``LocksInMemory``, the same for ``unittest``.
- ``plugin``: these as fixtures. pytest loads it if distlock_web is installed; it does nothing until it is used.
- ``race``: tries the orders of what two callers do at once, until one shows their race.
- ``contract``: the cases that every backend has to pass, with threads and with asyncio. A subclass runs them.
- ``framework_contract``: those that every web framework's integration has to pass, over an app of four endpoints.
  ``sites`` are its clients, by WSGI or ASGI alone.
- ``harness``: the tools of the contract's cases, for cases of your own that run in both modes.
- ``fault_injector``: loses requests and answers between the engine and any store.
- ``servers``: starts a Redis for a test session.

``plugin``, ``contract``, ``framework_contract`` and ``harness`` need pytest (``pip install "distlock_web[testing]"``).
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
