"""What a project's tests do to its locks: somebody else has one, it is lost, it ends, the store is silent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from distlock_web import (
    BackendUnavailable,
    ConfigurationError,
    Lease,
    LeaseLost,
    configure,
    distributed_lockable,
    held_locks,
    lock,
    once,
)
from distlock_web.backends.memory import MemoryPort
from distlock_web.core.backend import LockInfo
from distlock_web.testing import LocksInMemory, assert_lock_free, expire_lock, lose_lock, store_down
from tests.support.waiting import eventually

End = Callable[..., None]
ENDS = [(lose_lock, "revoked"), (expire_lock, "expired")]


@pytest.fixture(autouse=True)
def store(store_settings: dict[str, Any]) -> None:
    """In memory, and on a Redis: a test may want the real one."""
    configure({"default": {**store_settings, "PREFIX": "shop:"}})


@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_a_lock_that_is_lost_is_free_and_its_holder_told(end: End, reason: str) -> None:
    with pytest.raises(LeaseLost) as lost, lock("order:7"):
        end("order:7")
        assert_lock_free("order:7")
    assert lost.value.reason == reason
    with lock("order:7"):
        pass


@pytest.mark.parametrize(("end", "reason"), ENDS)
async def test_in_asyncio(end: End, reason: str) -> None:
    async def work() -> None:
        async with lock("order:7") as lease:
            end("order:7")
            await lease.aextend()

    with pytest.raises(LeaseLost) as lost:
        await asyncio.create_task(work())
    assert lost.value.reason == reason


def test_an_end_is_known_at_once() -> None:
    told: list[Lease] = []
    with lock("order:7", on_lost=told.append) as lease:
        assert not lease.lost
        expire_lock("order:7")
        assert lease.lost
        eventually(lambda: told == [lease], "on_lost is called")


def test_who_waits_gets_the_lock_that_is_lost() -> None:
    entered = threading.Event()

    def wait() -> None:
        with lock("order:7", wait=30):
            entered.set()

    waiter = threading.Thread(target=wait)
    with pytest.raises(LeaseLost), lock("order:7", expire=60):
        waiter.start()
        eventually(lambda: any(row.lock.waiters for row in held_locks("order:7")), "somebody waits")
        expire_lock("order:7")
        assert entered.wait(10)
    waiter.join()


@pytest.mark.parametrize(
    ("end", "said"), [(lose_lock, "Nobody holds the lock 'shop:b'"), (expire_lock, "not inside of the lock 'shop:b'")]
)
def test_what_nobody_holds_cannot_be_lost(end: End, said: str) -> None:
    with lock("a"), pytest.raises(AssertionError, match=said):
        end("b")
    once("b", keep="1h")(lambda: None)()
    with pytest.raises(AssertionError):
        end("b", prefix="shop:once:")
    with pytest.raises(ConfigurationError, match="'nope'"):
        end("a", store="nope")


def test_without_fences_a_lock_cannot_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Nobody holds the lock" was said of one that was held."""
    configure({"default": {"BACKEND": "memory"}})
    inspect = MemoryPort.inspect

    async def unfenced(self: MemoryPort, names: Sequence[str] | None = None) -> list[LockInfo]:
        return [replace(line, fence=None) for line in await inspect(self, names)]

    monkeypatch.setattr(MemoryPort, "inspect", unfenced)
    with lock("order:7"), pytest.raises(AssertionError, match="The store 'default' gives no fences"):
        lose_lock("order:7")
    with pytest.raises(AssertionError, match="Nobody holds"):
        lose_lock("order:7")


def test_a_store_that_is_down_is_back_after_the_block() -> None:
    with lock("held"), store_down():
        with pytest.raises(BackendUnavailable):
            lock("order:7").acquire()
        assert distributed_lockable(key="order:7", on_backend_error="open")(lambda: "done")() == "done"
    with lock("order:7"):
        pass
    assert_lock_free("held")


def test_a_block_that_fails_leaves_the_store_up() -> None:
    with pytest.raises(ZeroDivisionError), store_down():
        raise ZeroDivisionError
    with lock("order:7"):
        pass


def test_a_test_case_has_locks_of_its_own() -> None:
    class WithAnOrder(unittest.TestCase):
        def setUp(self) -> None:
            assert lock("of setUp").try_acquire()

    class Orders(LocksInMemory, WithAnOrder):
        def test_locks_are_in_memory(self) -> None:
            assert lock("left").try_acquire()

        test_nothing_of_another_test_is_held = test_locks_are_in_memory

    configure({"default": {"LOCATION": "redis://127.0.0.1:1"}})
    outcome = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Orders).run(outcome)
    assert (outcome.testsRun, outcome.failures, outcome.errors) == (2, [], [])
    with pytest.raises(BackendUnavailable):
        lock("left").acquire()


def test_without_pytest() -> None:
    code = "import sys; import distlock_web.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
