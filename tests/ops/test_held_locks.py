"""Which held lock is meant by a name, and the release by force: once, for the admin page and both command lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from distlock_web import (
    ConfigurationError,
    Lease,
    LeaseLost,
    aheld_locks,
    held_locks,
    lock,
    request_scope,
)
from distlock_web.core.registry import Registry, registry
from distlock_web.ops.held_locks import (
    AmbiguousName,
    NoFence,
    OtherFence,
    StoreUnreachable,
    find_lock,
    force_release,
    list_all,
)
from distlock_web.testing.fault_injector import FaultInjector, Half

Elsewhere = Callable[..., Lease]


@pytest.fixture
def stores(settings: Any, store_settings: dict[str, Any]) -> Registry:
    """A store ``default`` and, in memory, a store ``other``, both empty."""
    settings.DISTLOCK = {"default": store_settings, "other": {"BACKEND": "memory", "PREFIX": "b:"}}
    return registry()


def test_with_and_without_the_prefix(stores: Registry, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    for name in ("order:7", "disLock:order:7"):
        row = find_lock(stores, name)
        assert (row.alias, row.lock.name, row.lock.fence) == ("default", "disLock:order:7", lease.fence)
    assert find_lock(stores, "order:7", "default", lease.fence).lock.fence == lease.fence


def test_a_name_in_several_stores(stores: Registry, elsewhere: Elsewhere) -> None:
    lease = elsewhere("order:7")
    with lock("order:7", store="other"):
        with pytest.raises(AmbiguousName, match="disLock:order:7 in default, b:order:7 in other"):
            find_lock(stores, "order:7")
        assert find_lock(stores, "order:7", "other").alias == "other"
        assert find_lock(stores, "order:7", fence=lease.fence).alias == "default"
        assert find_lock(stores, "b:order:7").alias == "other"


def test_a_whole_name_wins_over_one_without_its_prefix(stores: Registry, elsewhere: Elsewhere) -> None:
    lease, nested = elsewhere("order:7"), elsewhere("disLock:order:7")
    assert find_lock(stores, "disLock:order:7").lock.fence == lease.fence
    assert find_lock(stores, "disLock:order:7", fence=nested.fence).lock.name == "disLock:disLock:order:7"


def test_a_store_without_fences_cannot_tell_holders_apart(
    settings: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": "memory"}}
    elsewhere("order:7")
    (row,) = list_all(registry()).rows
    unfenced = replace(row.lock, fence=None)

    async def inspect(self: object, names: object = None) -> list[object]:
        return [unfenced]

    port = type(registry().store("default").backend.sync_port())
    monkeypatch.setattr(port, "inspect", inspect)
    with pytest.raises(NoFence, match="'default' gives no fences"):
        find_lock(registry(), "order:7")
    with pytest.raises(OtherFence):
        force_release(registry(), replace(row, lock=unfenced), by="ann")


@pytest.mark.parametrize("half", ["request", "answer"])
def test_an_answer_that_is_lost_is_asked_for_again(injector: FaultInjector, elsewhere: Elsewhere, half: Half) -> None:
    """Law 3: a verb asks once, so whoever calls it asks again. The first one may have been done."""
    lease = elsewhere("order:7")
    injector.lose("inspect", half)
    row = find_lock(registry(), "order:7")
    injector.lose("inspect", half)
    assert [found.lock.fence for found in held_locks()] == [lease.fence]
    injector.lose("revoke", half)
    force_release(registry(), row, by="ann")
    assert injector.calls.count("revoke") == 2
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_release_that_is_answered_by_nobody_is_asked_for_twice_and_no_more(
    injector: FaultInjector, elsewhere: Elsewhere
) -> None:
    elsewhere("order:7")
    row = find_lock(registry(), "order:7")
    injector.lose("revoke", "request", "request")
    with pytest.raises(StoreUnreachable, match="; the lock may be held still: "):
        force_release(registry(), row, by="ann")
    assert injector.calls.count("revoke") == 2


# For code -----------------------------------------------------------------------------------------------------------


def test_code_can_look(stores: Registry, elsewhere: Elsewhere) -> None:
    with request_scope("job-17"):
        first = lock("order:7")
        first.acquire().detach()
    elsewhere("order:8")
    with lock("order:7", store="other"):
        assert [row.lock.name for row in held_locks()] == ["disLock:order:7", "disLock:order:8", "b:order:7"]
        assert [row.alias for row in held_locks("ORDER:7")] == ["default", "other"]
        (row,) = held_locks("order", store="other")
        assert row.lock.name == "b:order:7"
    (row,) = held_locks("job-17")
    assert (row.lock.state, row.holder.request_id) == ("transit", "job-17")
    assert held_locks("nobody") == []
    with pytest.raises(ConfigurationError, match="no store 'othr'"):
        held_locks(store="othr")


def test_all_locks_of_one_request(stores: Registry) -> None:
    """Its id does not say it: two clients may send the same."""
    for name in ("a", "b"):
        with request_scope("the-same"):
            lock([f"{name}:1", f"{name}:2"]).acquire().detach()
    assert len(held_locks("the-same")) == 4
    one = {row.lock.name: row.holder.request for row in held_locks()}["disLock:a:1"]
    assert {row.lock.name for row in held_locks(one)} == {"disLock:a:1", "disLock:a:2"}


async def test_code_can_look_in_asyncio(stores: Registry) -> None:
    async with lock("order:7"):
        assert [row.lock.name for row in await aheld_locks("order")] == ["disLock:order:7"]
        assert await lock("order:7").alocked()
        assert not await lock("order:8").alocked()
        with pytest.raises(ConfigurationError, match="event loop"):
            held_locks()
        with pytest.raises(ConfigurationError, match="event loop"):
            lock("order:7").locked()


def test_locked(stores: Registry, elsewhere: Elsewhere) -> None:
    assert not lock("order:7").locked()
    lease = elsewhere("order:7")
    assert lock("order:7").locked()
    assert lock("order:7").locked()  # a look takes nothing and queues nowhere
    assert not lock("order:70").locked()
    assert not lock("order:7", store="other").locked()
    assert lock(["order:6", "order:7"]).locked()
    (row,) = held_locks("order:7")
    assert row.lock.waiters == 0
    lease.detach()
    assert lock("order:7").locked()
