"""For tests: of a project that uses distlock_web, and of a backend or an integration that somebody writes for it.

- ``plugin``: fixtures and functions for a project's own tests, locks in memory instead of on a server. pytest loads it
  by itself where distlock_web is installed; it does nothing unless it is asked to.
- ``contract``: what every backend has to pass, with threads and with asyncio. One subclass runs it on a store.
- ``harness``: what a case of the contract is written with; for cases of your own that run in both modes.
- ``fault_injector``: loses requests and answers between the engine and a store, whichever that is.
- ``history``: checks what many processes report of one lock: overlaps, fences that fall, lost updates, overtaking.
- ``storm``: a store among many callers, with faults on the way to it, and what must not have happened.
- ``servers``: a Redis of one's own for a test session.

They need pytest (``pip install "distlock_web[testing]"``), except for ``servers``, ``history`` and ``storm``.
"""
