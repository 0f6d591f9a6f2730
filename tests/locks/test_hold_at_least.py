"""``hold_at_least``: a lock that is given back early stays closed for the rest of that time."""

from __future__ import annotations

import asyncio

import pytest

from distlock_web import distributed_lockable, lock
from distlock_web.core.backend import Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import THREADS, drive
from distlock_web.locks.call import Call
from distlock_web.locks.lease import scope_of
from tests.support.callers import Beside, unrelated
from tests.support.waiting import LONG, SOON, eventually


def test_a_cooldown_cannot_be_prolonged_by_the_one_who_gave_the_lock_back(store: str) -> None:
    """A renewal, or a second copy of the first request, that came late made ``hold_at_least`` a whole lease."""
    with lock("a", expire=LONG, hold_at_least=LONG / 2) as lease:
        claim = scope_of(lease).holds[0].claim
    port = registry().store("default").port(THREADS)
    drive(port.extend([claim]))
    assert not isinstance(drive(port.acquire(claim, 0)), Granted)
    (line,) = drive(port.inspect())
    assert line.state == "cooldown"
    assert line.remaining <= LONG / 2


def test_a_cooldown_that_is_shorter_than_the_lease_does_not_keep_its_waiter_for_the_lease(
    store: str, beside: Beside
) -> None:
    """In memory nobody told the waiter, which slept until the lease would have ended."""
    holder = unrelated("a", hold_at_least=0.5)
    port = registry().store("default").port(THREADS)
    waiting = beside(lock("a", wait=2 * SOON).acquire)
    eventually(lambda: drive(port.inspect())[0].waiters, "it waits")
    holder.release()
    waiting.result(SOON).release()


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_that_fails_after_it_was_judged_stays_taken(monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """Its work is done. In asyncio it was free, so it was done again."""

    def fail(*_: object) -> None:
        raise RuntimeError

    async def work_async() -> None: ...

    monkeypatch.setattr(Call, "stream", fail)
    decorate = distributed_lockable(key="a", hold_at_least=LONG)
    with pytest.raises(RuntimeError):
        asyncio.run(decorate(work_async)()) if asynchronous else decorate(lambda: None)()
    (line,) = drive(registry().store("default").port(THREADS).inspect())
    assert line.state == "cooldown"
