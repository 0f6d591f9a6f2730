"""Forks after use, a waiter that comes back, garbage inside of a transaction."""

from __future__ import annotations

import os
from typing import Any

from distlock_web import configure, lock
from distlock_web.core.backend import Busy, Claim, Granted
from distlock_web.core.registry import registry
from distlock_web.core.runtime import drive, new_token
from tests.support.callers import unrelated
from tests.support.forking import Fork, beside_threads, both_forks, in_child
from tests.support.waiting import LONG, eventually

pytestmark = beside_threads


def contend() -> None:
    """One waits for the other, so that a thread listens or asks; and one is renewed."""
    claims = [Claim("disLock:contended", new_token(), LONG) for _ in range(2)]
    backend = registry().store("default").backend
    port = backend.sync_port()
    assert isinstance(drive(port.acquire(claims[0], 0)), Granted)
    answer = drive(port.acquire(claims[1], None))
    assert isinstance(answer, Busy)
    assert backend._news.ready()  # type: ignore[attr-defined]
    drive(port.release(claims[0]))
    assert isinstance(drive(port.wait(claims[1], answer, None)), Granted)
    drive(port.release(claims[1]))
    with lock("renewed", renew=True) as lease:
        lease.extend()


@both_forks
def test_a_child_begins_afresh_and_the_parent_goes_on(settings: dict[str, Any], fork: Fork) -> None:
    configured = configure({"default": settings})
    if fork is os.fork:  # else there must be no threads: see there
        contend()
    lease = unrelated("parent", expire=LONG)

    def child() -> None:
        contend()
        assert lock("parent").try_acquire() is None
        configured.close()

    in_child(child, fork)
    contend()
    lease.extend()
    lease.release()


def test_a_waiter_that_was_forgotten_stands_where_it_stood(settings: dict[str, Any]) -> None:
    """As one that was taken for dead, and was only slow: it says where it stood."""
    port = configure({"default": settings}).store("default").backend.sync_port()
    holder, first, second = (Claim("disLock:a", new_token(), LONG) for _ in range(3))
    drive(port.acquire(holder, 0))
    before, behind = drive(port.acquire(first, None)), drive(port.acquire(second, None))
    assert isinstance(before, Busy)
    assert isinstance(behind, Busy)
    assert before.memo < behind.memo
    drive(port.cancel(first))
    again = drive(port.wait(first, before._replace(recheck_after=0.001), None))
    assert isinstance(again, Busy)
    assert again.memo == before.memo
    drive(port.release(holder))
    assert isinstance(drive(port.acquire(first, 0)), Granted)


def test_a_lock_that_garbage_releases_inside_a_transaction_is_released_after_it(settings: dict[str, Any]) -> None:
    """On an SQLite it would wait for the transaction that it is in, and so would one for the same row elsewhere."""
    backend = configure({"default": settings}).store("default").backend
    lease, cancelled = unrelated("a"), Claim("disLock:b", new_token(), LONG)
    assert isinstance(drive(backend.sync_port().acquire(cancelled, 0)), Granted)

    def collects(transaction: Any) -> None:
        lease.release()
        drive(backend.sync_port().cancel(cancelled))

    backend._requests.run(collects)  # type: ignore[attr-defined]
    assert lease.state == "released"
    eventually(lambda: drive(backend.sync_port().inspect()) == [], "both are free")


def test_what_garbage_releases_inside_a_transaction_stays_taken_as_it_has_to(settings: dict[str, Any]) -> None:
    """It was cancelled: free at once, and what was done was done again."""
    backend = configure({"default": settings}).store("default").backend
    port = backend.sync_port()
    kept, done = (Claim(f"disLock:{name}", new_token(), LONG) for name in ("kept", "done"))
    for claim in (kept, done):
        assert isinstance(drive(port.acquire(claim, 0)), Granted)

    def collects(transaction: Any) -> None:
        drive(port.release(kept, LONG))
        drive(port.release(done, LONG, "a record"))

    backend._requests.run(collects)  # type: ignore[attr-defined]

    def stays() -> bool:
        lines = drive(port.inspect([kept.name, done.name]))
        return [line.state for line in sorted(lines, key=lambda line: line.name)] == ["done", "cooldown"]

    eventually(stays, "both are released")
