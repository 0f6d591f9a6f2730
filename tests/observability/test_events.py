"""What is told, and when: each event, with threads and with asyncio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distlock_web import (
    BackendUnavailable,
    LeaseLost,
    LockBusy,
    configure,
    events,
    lock,
    request_scope,
)
from distlock_web.core.registry import registry
from distlock_web.ops.held_locks import force_release, list_all
from distlock_web.testing.fault_injector import FaultInjector
from distlock_web.testing.harness import PATIENCE, Harness
from tests.support.modes import in_both_modes

TTL = 0.5
SOURCE = Path(__file__).read_text().splitlines()


def kinds(seen: list[events.Event]) -> list[str]:
    return [event.kind for event in seen]


def only(seen: list[events.Event], kind: str) -> events.Event:
    [event] = [event for event in seen if event.kind == kind]
    return event


@in_both_modes
async def test_a_lock_is_acquired_and_released(harness: Harness, store: str, seen: list[events.Event]) -> None:
    with request_scope("job-17"):
        async with harness.inside(lock("stock:42", expire=10)) as lease:
            assert kinds(seen) == ["acquired"]
            fence = lease.fence
    taken, released = seen
    assert (taken.kind, released.kind) == ("acquired", "released")
    for event in seen:
        assert (event.store, event.name, event.fence, event.expire) == ("default", "disLock:stock:42", fence, 10)
        assert (event.request_id, event.reason, event.waited) == ("job-17", "", 0)
        assert event.holder == event.caller
    assert taken.lease == released.lease != 0
    assert 0 <= (taken.held or 0) <= (released.held or 0)


@in_both_modes
async def test_a_refusal_says_who_has_it(harness: Harness, store: str, seen: list[events.Event]) -> None:
    async def refused() -> None:
        with request_scope("second"), pytest.raises(LockBusy):
            await harness.acquire(lock("stock:42"))

    with request_scope("first"):
        async with harness.inside(lock("stock:42")):
            await harness.unrelated(refused).result()
    busy = only(seen, "busy")
    assert kinds(seen) == ["acquired", "busy", "released"]
    assert (busy.request_id, busy.holder and busy.holder.request_id) == ("second", "first")
    assert (busy.name, busy.waited, busy.lease) == ("disLock:stock:42", 0, 0)


@in_both_modes
async def test_a_wait_that_ends_well(harness: Harness, store: str, seen: list[events.Event]) -> None:
    async def wait() -> None:
        async with harness.inside(lock("a", wait=30)):
            pass

    async with harness.inside(lock("a")):
        waiter = harness.unrelated(wait)
        await harness.waiters("disLock:a", 1)
    await waiter.result()
    waited = only(seen, "waited")
    assert sorted(kinds(seen)) == ["acquired", "acquired", "released", "released", "waited"]
    second = [event for event in seen if event.lease == waited.lease]
    assert kinds(second) == ["waited", "acquired", "released"]
    assert all(0 < event.waited < PATIENCE for event in second)


@in_both_modes
async def test_a_wait_that_ends_badly(harness: Harness, store: str, seen: list[events.Event]) -> None:
    async def wait() -> None:
        with pytest.raises(LockBusy):
            await harness.acquire(lock("a", wait=0.05))

    async with harness.inside(lock("a")):
        await harness.unrelated(wait).result()
    assert kinds(seen) == ["acquired", "waited", "busy", "released"]
    assert seen[1].waited == seen[2].waited > 0


@in_both_modes
async def test_all_or_none(harness: Harness, store: str, seen: list[events.Event]) -> None:
    """What is given back because a further name is busy was acquired and released."""

    async def both() -> None:
        with pytest.raises(LockBusy):
            await harness.acquire(lock(["a", "b"]))

    async with harness.inside(lock("b")):
        seen.clear()
        await harness.unrelated(both).result()
        assert [(event.kind, event.name) for event in seen] == [
            ("acquired", "disLock:a"),
            ("released", "disLock:a"),
            ("busy", "disLock:b"),
        ]


@in_both_modes
async def test_a_renewal_by_the_watchdog(harness: Harness, store: str, seen: list[events.Event]) -> None:
    async def renewed() -> bool:
        return "renewed" in kinds(seen)

    async with harness.inside(lock("a", renew=True)):
        await harness.until(renewed)
    assert kinds(seen)[-1] == "released"
    assert only(seen[:2], "renewed").lease == seen[0].lease


@pytest.mark.timing
@in_both_modes
async def test_a_loss_that_the_watchdog_notices(harness: Harness, store: str, seen: list[events.Event]) -> None:
    """While the block runs, and with the request that has the lock, not that of the watchdog's thread."""

    async def told() -> bool:
        return "lost" in kinds(seen)

    with request_scope("job-17"):
        async with harness.inside(lock("a", expire=TTL, on_lost=lambda lease: None)):
            await harness.until(told)
    assert kinds(seen) == ["acquired", "lost"]
    assert seen[1].request_id == "job-17"


def test_a_release_by_force_says_who_did_it(store: str, seen: list[events.Event]) -> None:
    with pytest.raises(LeaseLost), request_scope("holder"), lock("a") as lease:
        fence = lease.fence
        [row] = list_all(registry()).rows
        force_release(registry(), row, by="ada")
        revoked = only(seen, "revoked")
        assert (revoked.name, revoked.fence, revoked.reason) == ("disLock:a", fence, "ada")
        assert revoked.holder is not None
        assert revoked.holder.request_id == "holder"


@in_both_modes
async def test_a_lock_changes_hands(harness: Harness, store: str, seen: list[events.Event]) -> None:
    lease = await harness.acquire(lock("a"))
    ticket = await harness.detach(lease)
    await harness.release(await harness.attach(ticket))
    assert [(event.kind, event.reason) for event in seen] == [
        ("acquired", ""),
        ("released", "detached"),
        ("acquired", "attached"),
        ("released", ""),
    ]
    assert len({event.fence for event in seen}) == 1
    assert seen[1].lease == seen[0].lease != seen[2].lease == seen[3].lease


# A store that fails -------------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(store_settings: dict[str, Any]) -> FaultInjector:
    return FaultInjector(configure({"default": store_settings}).store("default"))


@in_both_modes
async def test_no_answer_to_a_release(harness: Harness, faulty: FaultInjector, seen: list[events.Event]) -> None:
    """It ends with its lease: it is not ours any more, and nobody is left to say so later."""
    async with harness.inside(lock("a")):
        faulty.cut()
    assert [(event.kind, event.reason) for event in seen] == [
        ("acquired", ""),
        ("released", "unreachable"),
        ("error", "release"),
    ]


@in_both_modes
async def test_no_answer_to_a_renewal(harness: Harness, faulty: FaultInjector, seen: list[events.Event]) -> None:
    async with harness.inside(lock("a")) as lease:
        faulty.cut()
        with pytest.raises(BackendUnavailable):
            await harness.extend(lease)
        faulty.mend()
    assert [(event.kind, event.reason) for event in seen] == [("acquired", ""), ("error", "extend"), ("released", "")]


# Templates ----------------------------------------------------------------------------------------------------------


@in_both_modes
async def test_the_template_of_a_function_is_its_key(harness: Harness, store: str, seen: list[events.Event]) -> None:
    async def work(*args: object) -> None:
        pass

    await harness.decorated(work, key=lambda *args: f"order:{args[0]}")(7)
    assert [event.name for event in seen] == ["disLock:order:7"] * 2
    assert all(event.template.endswith(".work") for event in seen)


@in_both_modes
async def test_the_template_of_a_block_is_the_line_that_names_it(
    harness: Harness, store: str, seen: list[events.Event]
) -> None:
    def order_lock(number: int) -> Any:
        return lock(f"order:{number}")  # this line

    for number in range(3):
        async with harness.inside(order_lock(number)):
            pass
    [template] = {event.template for event in seen}
    module, _, line = template.rpartition(":")
    assert module == __name__
    assert "# this line" in SOURCE[int(line) - 1]


@pytest.mark.timing
@in_both_modes
async def test_no_answer_to_the_watchdog(harness: Harness, faulty: FaultInjector, seen: list[events.Event]) -> None:
    async def told() -> bool:
        return "lost" in kinds(seen)

    with pytest.raises(LeaseLost):
        async with harness.inside(lock("a", expire=1.5, renew=True)):  # or the watchdog might sleep through it
            faulty.cut()
            await harness.until(told)
    errors = [event for event in seen if event.kind == "error"]
    assert {event.reason for event in errors} == {"renew"}
    assert only(seen, "lost").reason == "unreachable"


@in_both_modes
async def test_no_answer_to_a_hand_over(harness: Harness, faulty: FaultInjector, seen: list[events.Event]) -> None:
    lease = await harness.acquire(lock("a"))
    faulty.lose("detach", "request", "request")
    with pytest.raises(BackendUnavailable):
        await harness.detach(lease)
    assert ("error", "transfer") in [(event.kind, event.reason) for event in seen]
