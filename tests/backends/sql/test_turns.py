"""One thread of a process at a time asks for a name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from distlock_web import configure, held_locks, lock
from distlock_web.backends.sql import turns as module
from distlock_web.backends.sql.turns import Turns
from tests.support.callers import Beside
from tests.support.waiting import PATIENCE, eventually


def started(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_the_second_comes_after_the_first_and_another_name_does_not_wait() -> None:
    turns, entered, order = Turns(), threading.Event(), []

    def second() -> None:
        entered.set()
        with turns.of("a", PATIENCE):
            order.append("second")

    with turns.of("a", PATIENCE):
        thread = started(second)
        assert entered.wait(PATIENCE)
        with turns.of("b", PATIENCE):
            order.append("other name")
        thread.join(0.05)
        order.append("first")
    thread.join(PATIENCE)
    assert order == ["other name", "first", "second"]
    assert not turns._locks


def test_nobody_waits_longer_than_it_would_for_a_connection() -> None:
    turns = Turns()
    with turns.of("a", 0.01), turns.of("a", 0.01):
        pass
    with turns.of("a", PATIENCE):  # and that has not made it anybody's
        pass
    assert not turns._locks


def test_who_is_interrupted_when_it_has_the_turn_keeps_it_from_nobody(
    monkeypatch: pytest.MonkeyPatch, beside: Beside
) -> None:
    """A signal's exception came between the turn and the variable that was to know of it."""
    lock_of = {name: getattr(threading, name) for name in ("Lock", "RLock")}
    made: list[Any] = []

    class Interrupted:
        def __init__(self, name: str) -> None:
            self.lock = lock_of[name]()
            made.append(self.lock)

        def acquire(self, timeout: float) -> None:
            self.lock.acquire(timeout=timeout)
            raise KeyboardInterrupt

        def release(self) -> None:
            self.lock.release()

    turns = Turns()
    # That module's alone: other threads make locks of their own.
    monkeypatch.setattr(module, "threading", SimpleNamespace(**{name: partial(Interrupted, name) for name in lock_of}))
    with pytest.raises(KeyboardInterrupt), turns.of("a", PATIENCE):
        pass
    monkeypatch.undo()
    assert beside(made[-1].acquire, timeout=0.0).result(PATIENCE), "it is free"
    assert not turns._locks


def test_a_name_that_many_want_takes_one_connection(postgres_settings: dict[str, Any]) -> None:
    settings = {**postgres_settings, "OPTIONS": {"max_connections": 4, "pool_timeout": PATIENCE}}
    backend: Any = configure({"default": settings}).store("default").backend

    def ask() -> None:
        with lock("a", expire=PATIENCE, wait=PATIENCE):
            pass

    with lock("a", expire=PATIENCE):
        threads = [started(ask) for _ in range(12)]
        eventually(lambda: held_locks()[0].lock.waiters == 12, "all wait")
        pool = backend._requests.connections
        used = len(pool._idle) + len(pool._lent)
    for thread in threads:
        thread.join(PATIENCE)
    assert used <= 2, "one to take the lock, and one for those that ask"
